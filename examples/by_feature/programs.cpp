// SPDX-License-Identifier: Apache-2.0
// by_feature NAME ARGUMENTS: runs the program NAME.cpp of this folder.
#include "programs.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

#include "../command_line.hpp"

namespace {

struct Argument {
  std::string name{};
  std::string meaning{};
  bool is_number = false;
};

/// Arguments of the programs in order. All are optional here.
const std::map<std::string, std::vector<Argument>> arguments_of{
    {"checkpoint",
     {{"FOLDER", "Folder for checkpoints, digits_run by default"}, {"EPOCHS", "Epochs in all, 3 by default", true}}},
    {"torchscript", {{"FILE", "Network written by examples/by_feature/export_net.py"}}},
    {"tracking", {{"FOLDER", "Folder for the log files, logs by default"}}},
    {"launch_workers", {{"RANKS", "Number of ranks, 2 by default", true}}},
};

/// Checks the arguments of a program and answers its `--help`, then calls its main().
int run(const std::string& name, const by_feature::Main& start, int argc, char** argv) {
  CLI::App app("examples/by_feature/" + name + ".cpp", "by_feature " + name);
  const auto found = arguments_of.find(name);
  std::vector<std::string> values(found == arguments_of.end() ? 0 : found->second.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const auto& argument = found->second[i];
    auto* const option = app.add_option(argument.name, values[i], argument.meaning);
    if (argument.is_number) option->check(CLI::Range(int64_t{1}, int64_t{1'000'000}));
  }
  return command_line::run(app, argc, argv, [&] { return start(argc, argv); });
}

std::string list_of_programs() {
  std::string list = "NAME is one of\n";
  for (const auto& [name, start] : by_feature::programs()) list += fmt::format("  {}\n", name);
  return list + "by_feature NAME --help lists the arguments of a program.\n";
}

}  // namespace

int main(int argc, char** argv) {
  const auto& programs = by_feature::programs();
  const auto found = argc > 1 ? programs.find(argv[1]) : programs.end();
  if (found != programs.end()) return run(found->first, found->second, argc - 1, argv + 1);

  CLI::App app("Runs one of the programs of examples/by_feature");
  std::string name;
  app.footer(list_of_programs());
  app.add_option("NAME", name, "Program to run")->required();
  return command_line::run(app, argc, argv, [&] {
    fmt::print(stderr, "by_feature has no program '{}'. {}", name, list_of_programs());
    return 2;
  });
}
