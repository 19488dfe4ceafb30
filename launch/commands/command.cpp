// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/command.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "accelerate/base/error.hpp"

namespace accelerate::launch {
namespace {

/// Wraps the text into lines of at most `most` characters.
std::string in_lines(const std::string& text, size_t most) {
  std::string result;
  size_t column = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    if (column > 0) result += column + 1 + end - at > most ? (column = 0, '\n') : (++column, ' ');
    result += text.substr(at, end - at);
    column += end - at;
    at = end + 1;
  }
  return result;
}

/// Lists each option once, with its first name.
class CommandPage : public CLI::Formatter {
 public:
  CommandPage() {
    column_width(30);
    label("OPTIONS", "options");
    label("SUBCOMMAND", "what");
    label("Subcommands", "What");
  }
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    if (is_positional) return option->get_name(true);
    return fmt::format("--{}", option->get_lnames().front());
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    const bool takes_value = option->get_type_size() != 0 && !option->get_positional();
    return takes_value ? " " + option->get_type_name() : "";
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    return in_lines(option->get_description(), 118 - get_column_width());
  }
};

}  // namespace

int run_command(Command command, int argc, char** argv, int trouble) {
  try {
    const CommandResult answer = command({argv + 1, argv + argc});
    const bool written = std::fwrite(answer.text.data(), 1, answer.text.size(), stdout) == answer.text.size() &&
                         std::fflush(stdout) == 0;
    if (written) return answer.code;
    fmt::print(stderr, "{}: the output could not be written completely to stdout\n", argv[0]);
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return error.kind() == ErrorKind::usage ? 2 : trouble;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", argv[0], error.what());
  }
  return trouble;
}

CommandLine::CommandLine(std::string name, std::string purpose, const std::vector<std::string>& examples)
    : app_(std::move(purpose), name), name_(std::move(name)) {
  app_.formatter(std::make_shared<CommandPage>());
  app_.set_help_flag("--help,-h", "Print this page and exit.");
  app_.set_version_flag("--version", name_ + " " ACCELERATE_VERSION, "Print the version and exit.");
  std::string footer = "Examples:";
  for (const auto& example : examples) footer += "\n  " + example;
  app_.footer(footer);
}

std::optional<CommandResult> CommandLine::parse(const Arguments& arguments) {
  try {
    app_.parse(Arguments(arguments.rbegin(), arguments.rend()));  // CLI11 reads from the back
    return std::nullopt;
  } catch (const CLI::CallForHelp&) {
    return CommandResult{app_.help()};
  } catch (const CLI::CallForVersion& version) {
    return CommandResult{std::string(version.what()) + "\n"};
  } catch (const CLI::ParseError& error) {
    base::fail(ErrorKind::usage, {}, name_, "{}; see {} --help", error.what(), name_);
  }
}

std::string option_spellings(const std::string& name) {
  std::string dashes = name;
  std::replace(dashes.begin(), dashes.end(), '_', '-');
  return dashes == name ? "--" + name : fmt::format("--{},--{}", name, dashes);
}

}  // namespace accelerate::launch
