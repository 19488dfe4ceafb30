// SPDX-License-Identifier: Apache-2.0
// Common code of the small programs: command line, help page, result and errors.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

namespace accelerate::launch {

/// Stdout text and exit code of a program.
struct CommandResult {
  std::string text{};
  int code = 0;
};

using Arguments = std::vector<std::string>;
using Command = CommandResult (*)(const Arguments& arguments);

/// Runs the command from main(): writes its text to stdout and an Error to stderr.
///
/// \returns the exit code of the answer. For an Error: 2 if the command line was wrong, otherwise `trouble`.
int run_command(Command command, int argc, char** argv, int trouble = 1);

/// A program's command line: CLI11, with help of one page that ends with examples.
class CommandLine {
 public:
  /// \param name      Name of the program.
  /// \param purpose   One or more sentences that describe the program.
  /// \param examples  Shell commands.
  CommandLine(std::string name, std::string purpose, const std::vector<std::string>& examples);

  [[nodiscard]] CLI::App& app() { return app_; }

  /// \returns the help page or the version if requested; otherwise nothing, and the declared options are filled in.
  /// \throws Error (usage) for an undeclared option.
  std::optional<CommandResult> parse(const Arguments& arguments);

 private:
  CLI::App app_;
  std::string name_;
};

/// Returns "--a_b,--a-b", so that options accept both spellings.
std::string option_spellings(const std::string& name);

}  // namespace accelerate::launch
