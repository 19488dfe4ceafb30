// SPDX-License-Identifier: Apache-2.0
// What the small programs share: a command line with a page of help, an answer, and how errors end.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

namespace accelerate::launch {

/// What a program prints on stdout, and its exit code.
struct Answer {
  std::string text{};
  int code = 0;
};

using Arguments = std::vector<std::string>;
using Command = Answer (*)(const Arguments& arguments);

/// Runs it as main() does: its text to stdout; an Error to stderr.
///
/// returns   the exit code: the answer's; for an Error 2 when the call was wrong, else trouble
int run_command(Command command, int argc, char** argv, int trouble = 1);

/// A program's command line: CLI11, with help of one page that ends with examples.
class CommandLine {
 public:
  /// name       of the program
  /// purpose    what it does, in sentences
  /// examples   lines of a shell
  CommandLine(std::string name, std::string purpose, const std::vector<std::string>& examples);

  [[nodiscard]] CLI::App& app() { return app_; }

  /// returns   the page or the version, where asked for; else nothing, and what was declared is filled in
  /// Throws Error (usage) for what was not declared.
  std::optional<Answer> parse(const Arguments& arguments);

 private:
  CLI::App app_;
  std::string name_;
};

/// "--a_b,--a-b": options may be spelled either way.
std::string both_ways(const std::string& name);

}  // namespace accelerate::launch
