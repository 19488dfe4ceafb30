// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/configure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iostream>

#include "accelerate/archive/atomic_file.hpp"
#include "accelerate/archive/mapped_file.hpp"
#include "accelerate/base/error.hpp"
#include "launch/commands/questions.hpp"

namespace accelerate::launch {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kConfigProgram = "accelerate_config";

CommandResult write_config(const fs::path& path, const std::string& text) {
  std::error_code error;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), error);
  archive::AtomicFile file(path, kConfigProgram);
  file.sink().write(text);
  file.commit(archive::Existing::replace);
  return {
      fmt::format("{} is written. It is used by\n  accelerate_launch --config_file {} PROGRAM\nand by programs that "
                  "find its name in ACCELERATE_CONFIG_FILE.\n",
                  path.string(), path.string())};
}

void check_config_name(const fs::path& path) {
  if (path.extension() != ".json") return;
  base::fail(ErrorKind::usage, {}, kConfigProgram, "{} would be JSON; give the name of a .yaml file", path.string());
}

CommandResult ask(const fs::path& path, const Machine& machine) {
  Questions questions(std::cin, std::cerr);
  if (fs::exists(path) && !questions.yes(fmt::format("{} exists already. Overwrite it?", path.string()), false)) {
    return {fmt::format("{} stays as it is.\n", path.string())};
  }
  return write_config(path, yaml_of(ask_for_config(questions, machine)));
}

CommandResult write_default(const fs::path& path, const Machine& machine, const std::string& precision) {
  constexpr std::array<std::string_view, 3> precisions{"no", "bf16", "fp16"};
  if (std::find(precisions.begin(), precisions.end(), precision) == precisions.end()) {
    base::fail(ErrorKind::usage, {}, kConfigProgram, "--mixed_precision is '{}', must be no, bf16 or fp16", precision);
  }
  if (fs::exists(path)) {
    base::fail(ErrorKind::usage, {}, kConfigProgram,
               "{} exists already; 'accelerate_config' overwrites it after a question, 'update' keeps its values",
               path.string());
  }
  return write_config(path, yaml_of(default_config(machine, precision)));
}

CommandResult update(const fs::path& path) {
  const std::string old(archive::MappedFile(path, kConfigProgram).text());
  return write_config(path, updated_yaml(old, path.string()));
}

}  // namespace

CommandResult configure(const Arguments& arguments) {
  const auto variables = env::current_variables();
  CommandLine line(std::string(kConfigProgram),
                   "Writes the config file of accelerate_launch, which Hugging Face Accelerate reads too. Asks "
                   "questions, except\nwith 'default' and 'update'.\n",
                   {"accelerate_config --config_file train.yaml", "accelerate_config default --mixed_precision bf16"});
  std::string path = default_config_path(variables).string();
  std::string precision = "no";
  const auto add_path = [&](CLI::App& app) {
    app.add_option(option_spellings("config_file"), path, fmt::format("The file (default {})", path))
        ->type_name("FILE");
  };
  add_path(line.app());
  auto* const defaults =
      line.app().add_subcommand("default", "One rank per GPU, or one on the CPU without GPUs; no questions.");
  auto* const updates =
      line.app().add_subcommand("update", "Converts an old file to today's keys and keeps its values.");
  for (auto* const what : {defaults, updates}) {
    what->set_help_flag("--help,-h", "Print this page and exit.");
    add_path(*what);
  }
  defaults->add_option(option_spellings("mixed_precision"), precision, "no, bf16 or fp16 (default no)")
      ->type_name("NAME");
  line.app().require_subcommand(0, 1);
  if (auto answer = line.parse(arguments)) return *answer;
  check_config_name(path);
  if (updates->parsed()) return update(path);
  const Machine machine = this_machine(variables);
  return defaults->parsed() ? write_default(path, machine, precision) : ask(path, machine);
}

}  // namespace accelerate::launch
