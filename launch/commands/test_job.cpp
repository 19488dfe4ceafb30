// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/test_job.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "accelerate/base/error.hpp"
#include "accelerate/env/parse.hpp"

namespace accelerate::launch {
namespace {

constexpr std::string_view kTestProgram = "accelerate_test";

// Accepts "--num-processes=4" for num_processes.
bool is_option(std::string argument, std::string_view name) {
  argument = argument.substr(0, argument.find('='));
  std::replace(argument.begin(), argument.end(), '-', '_');
  return argument == "__" + std::string(name);
}

/// An option that determines the number of ranks, and the equivalent variable.
struct RankCountSetting {
  std::string_view option;
  std::string_view variable;
};

constexpr std::array<RankCountSetting, 9> kRankCountSettings{{{"num_processes", "ACCELERATE_NUM_PROCESSES"},
                                                              {"num_machines", "ACCELERATE_NUM_MACHINES"},
                                                              {"ranks_per_machine", "ACCELERATE_RANKS_PER_MACHINE"},
                                                              {"config_file", "ACCELERATE_CONFIG_FILE"},
                                                              {"hosts", "ACCELERATE_HOSTS"},
                                                              {"hostfile", "ACCELERATE_HOSTFILE"},
                                                              {"mpirun_hostfile", "ACCELERATE_MPIRUN_HOSTFILE"},
                                                              {"runner", "ACCELERATE_RUNNER"},
                                                              {"device", "ACCELERATE_TORCH_DEVICE"}}};

bool sets_rank_count(const Arguments& arguments, const env::Variables& variables) {
  if (env::find(variables, "SLURM_JOB_ID")) return true;  // the allocation determines the number of ranks
  return std::any_of(kRankCountSettings.begin(), kRankCountSettings.end(), [&](const RankCountSetting& each) {
    return env::find(variables, std::string(each.variable)) ||
           std::any_of(arguments.begin(), arguments.end(),
                       [&](const std::string& argument) { return is_option(argument, each.option); });
  });
}

std::string own_folder() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) base::fail(ErrorKind::environment, {}, kTestProgram, "/proc/self/exe cannot be read: {}", error.message());
  return self.parent_path().string();
}

}  // namespace

std::vector<std::string> test_command(const Arguments& arguments, const Machine& machine,
                                      const env::Variables& variables, const std::string& folder) {
  std::vector<std::string> command{folder + "/accelerate_launch"};
  if (machine.gpus == 0 && !sets_rank_count(arguments, variables)) {
    command.insert(command.end(), {"--num_processes", "2"});
  }
  command.insert(command.end(), arguments.begin(), arguments.end());
  command.push_back(folder + "/accelerate_test_worker");
  return command;
}

CommandResult test_job(const Arguments& arguments) {
  CommandLine line(std::string(kTestProgram),
                   "Checks whether a job works here: runs every collective, and compares a training with that of one "
                   "rank.\nAccepts the options of accelerate_launch and starts ranks in the same way: one rank per "
                   "GPU, or without GPUs two on\nthe CPU, unless an option, a variable or Slurm sets the number.\n"
                   "Exit code: 0, 1 if a check failed, otherwise that of accelerate_launch.\n",
                   {"accelerate_test", "accelerate_test --num_processes 4 --backend gloo"});
  const bool asks = std::any_of(arguments.begin(), arguments.end(), [](const std::string& argument) {
    return argument == "--help" || argument == "-h" || argument == "--version";
  });
  if (asks) {
    line.app().allow_extras();
    if (auto answer = line.parse(arguments)) return *answer;
  }
  const auto variables = env::current_variables();
  const std::string folder = own_folder();
  auto command = test_command(arguments, this_machine(variables), variables, folder);
  std::vector<char*> words;
  for (std::string& word : command) words.push_back(word.data());
  words.push_back(nullptr);
  execv(words[0], words.data());
  base::fail(ErrorKind::environment, {}, kTestProgram, "{} cannot be run: {}", command.front(), std::strerror(errno));
}

}  // namespace accelerate::launch
