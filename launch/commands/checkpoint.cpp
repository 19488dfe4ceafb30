// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/checkpoint.hpp"

#include "accelerate/base/error.hpp"

namespace accelerate::launch {

CommandResult checkpoint(const Arguments& arguments) {
  CommandLine line(std::string(kCheckpointProgram),
                   "Inspects and compares checkpoints. Exit code: 0, 1 if verify finds damage or diff a difference, 2 "
                   "after an error.\n",
                   {"accelerate_checkpoint inspect --tensors checkpoints/checkpoint_7",
                    "accelerate_checkpoint verify checkpoints        # every checkpoint_N in it",
                    "accelerate_checkpoint diff checkpoints/checkpoint_6 checkpoints/checkpoint_7"});
  std::string left;
  std::string right;
  bool tensors = false;
  bool quick = false;
  size_t most = 20;
  auto* const inspects = line.app().add_subcommand("inspect", "Shows the content of a checkpoint.");
  inspects->add_option("DIR", left, "A checkpoint, or a folder of checkpoints")->required();
  inspects->add_flag("--tensors", tensors, "Each tensor too: name, dtype, shape, file");
  auto* const verifies = line.app().add_subcommand("verify", "Reads every file and compares it with its checksum.");
  verifies->add_option("DIR", left, "A checkpoint, or a folder of checkpoints")->required();
  verifies->add_flag("--quick", quick, "Sizes and headers only");
  auto* const diffs = line.app().add_subcommand("diff", "Compares two checkpoints, models' folders or files.");
  diffs->add_option("A", left, "A folder or a file")->required();
  diffs->add_option("B", right, "The other")->required();
  diffs->add_option("--most", most, "Maximum number of lines per file (default 20)")
      ->check(CLI::NonNegativeNumber)
      ->type_name("N");
  for (auto* const what : {inspects, verifies, diffs}) what->set_help_flag("--help,-h", "Print this page and exit.");
  line.app().require_subcommand(1);
  if (auto answer = line.parse(arguments)) return *answer;
  if (inspects->parsed()) return inspect(left, tensors);
  return verifies->parsed() ? verify(left, !quick) : diff(left, right, most);
}

}  // namespace accelerate::launch
