// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "accelerate/env/settings_table.hpp"
#include "launch/plan/option_types.hpp"

namespace accelerate::launch {
namespace {

/// One page: each option once, under its first name.
class OnePage : public CLI::Formatter {
 public:
  OnePage() { column_width(38); }
  std::string make_option_name(const CLI::Option* option, bool /*is_positional*/) const override {
    return fmt::format("--{}", option->get_lnames().front());
  }
  std::string make_usage(const CLI::App* /*app*/, std::string /*name*/) const override {
    return "accelerate_launch [options] program [arguments]\n\n"
           "Starts the ranks of a job on this machine, passes their output and signals on, and stops all of them when\n"
           "one fails. Exit code: the first failing rank's (128 + signal), 2 for a wrong option, 126 / 127 when the\n"
           "program cannot be run / is not there.\n";
  }
  std::string make_description(const CLI::App* /*app*/) const override { return ""; }
  std::string make_footer(const CLI::App* /*app*/) const override {
    return "\nOptions may be spelled --num-processes too. Everything after the program is the program's; -- may stand "
           "before it.\n";
  }
};

/// "--num_processes,--num-processes"
std::string both_spellings(const std::string& name) {
  std::string dashes = name;
  std::replace(dashes.begin(), dashes.end(), '_', '-');
  return dashes == name ? fmt::format("--{}", name) : fmt::format("--{},--{}", name, dashes);
}

/// More than any machine can run; a typing error must not fork until memory ends.
constexpr int64_t most_processes = 4096;

/// The command line calls integers whole numbers.
std::string expected(const env::Integer& type) {
  return type.highest == env::Integer::no_limit
             ? fmt::format("a whole number of at least {}", type.lowest)
             : fmt::format("a whole number from {} to {}", type.lowest, type.highest);
}
template <typename Type>
std::string expected(const Type& type) {
  return type.expected();
}

/// Declares an option; a text that its type does not take is refused with what it takes.
template <typename Type>
void add(CLI::App& app, const env::CommandLineOption& option, const Type& type,
         std::optional<typename Type::Value>& target) {
  const auto take = [name = option.name, type, &target](const CLI::results_t& texts) {
    target = type.parse(texts.back());
    if (!target) fail(ErrorKind::usage, "--{} is '{}', must be {}", name, texts.back(), expected(type));
    return true;
  };
  auto* declared = app.add_option(both_spellings(std::string(option.name)), take, option.help);
  declared->type_name(std::string(option.value_name));
  // A flag: --cpu, or --cpu=no.
  if (option.value_name.empty()) declared->expected(0)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void declare(CLI::App& app, LaunchOptions& o, bool& help, bool& version) {
  add(app, {"num_processes", "N", "Ranks, at most 4096; else one per visible GPU, or one (with --device cuda:N)."},
      env::Integer{1, most_processes}, o.num_processes);
  add(app, {"main_process_port", "PORT", "Where rank 0 listens on 127.0.0.1; else 29500. 0: a free one."},
      env::Integer{0, 65535}, o.main_process_port);
  add(app, {"grace_time", "SECONDS", "For ranks that are told to end, before they are killed; else 5."}, Duration{},
      o.grace_time);
  env::for_each_setting([&](const auto& row) { add(app, row.option, row.type, row.of(o.settings)); });
  app.add_flag("-h,--help", help, "Print this page and exit.");
  app.add_flag("--version", version, "Print the version and exit.");
}

void check_device_of_backend(const LaunchOptions& o) {
  const auto& device = o.settings.device;
  const bool cpu_by_name = device && env::parse_device(*device)->is_cpu();
  if (!needs_gpus(o) || !(on_cpu(o) || cpu_by_name)) return;
  fail(ErrorKind::usage, "--backend {} needs GPUs, but {} is given; use {}", *o.settings.backend,
       on_cpu(o) ? "--cpu" : "--device cpu", env::backend_choice("cpu"));
}

}  // namespace

bool on_cpu(const LaunchOptions& options) { return options.settings.cpu.value_or(false); }

bool needs_gpus(const LaunchOptions& options) {
  const auto& backend = options.settings.backend;
  return backend && !env::is_backend(*backend, "cpu");
}

Parsed parse(const std::vector<std::string>& arguments) {
  Parsed parsed;
  LaunchOptions& options = parsed.options;
  bool help = false;
  bool version = false;
  CLI::App app;
  app.set_help_flag();
  app.prefix_command();
  app.formatter(std::make_shared<OnePage>());
  declare(app, options, help, version);
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11 reads from the back
  } catch (const CLI::ParseError& error) {
    fail(ErrorKind::usage, "{}; see accelerate_launch --help", error.what());
  }
  if (help) parsed.print = app.help();
  if (version) parsed.print = "accelerate_launch " ACCELERATE_VERSION "\n";
  if (parsed.print) return parsed;

  options.command = app.remaining();
  if (!options.command.empty() && options.command.front() == "--") {
    options.command.erase(options.command.begin());
  } else if (!options.command.empty() && options.command.front().starts_with('-')) {
    fail(ErrorKind::usage, "{} is not an option; see accelerate_launch --help", options.command.front());
  }
  check_device_of_backend(options);
  if (options.command.empty()) {
    fail(ErrorKind::usage, "no program given; usage: accelerate_launch [options] program [arguments]");
  }
  return parsed;
}

}  // namespace accelerate::launch
