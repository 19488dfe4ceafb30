// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <limits>
#include <memory>

#include "accelerate/env/backends.hpp"

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
constexpr int64_t most_threads = 65536;  // as the library's setting
constexpr int64_t no_limit = std::numeric_limits<int64_t>::max();

/// An option with a whole number from low to high, refused with its text.
void add_integer(CLI::App& app, const std::string& name, std::optional<int64_t>& target, int64_t low, int64_t high,
                 const char* value_name, const char* meaning) {
  const auto take = [name, &target, low, high](const std::string& text) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size() || value < low || value > high) {
      const auto limit =
          high == no_limit ? fmt::format("of at least {}", low) : fmt::format("from {} to {}", low, high);
      fail(ErrorKind::usage, "--{} is '{}', must be a whole number {}", name, text, limit);
    }
    target = value;
  };
  app.add_option_function<std::string>(both_spellings(name), take, meaning)->type_name(value_name);
}

void declare(CLI::App& app, LaunchOptions& o, bool& help, bool& version) {
  app.add_flag(both_spellings("cpu"), o.cpu, "Train on the CPU although GPUs are there.");
  add_integer(app, "num_processes", o.num_processes, 1, most_processes, "N",
              "Ranks to start, at most 4096; else one per visible GPU, or one.");
  app.add_option(both_spellings("backend"), o.backend, "mpi or gloo on the CPU, nccl on GPUs; else what is there.")
      ->type_name("NAME");
  add_integer(app, "main_process_port", o.main_process_port, 0, 65535, "PORT",
              "Where rank 0 listens on 127.0.0.1; else 29500. 0: a free one.");
  add_integer(app, "num_cpu_threads_per_process", o.num_cpu_threads_per_process, 1, most_threads, "N",
              "OMP_NUM_THREADS of a rank; else the library shares out the cores.");
  add_integer(app, "gradient_accumulation_steps", o.gradient_accumulation_steps, 1, no_limit, "N",
              "Micro-batches per optimizer step; else what the program says.");
  app.add_flag(both_spellings("debug"), o.debug, "Compare every collective across the ranks first.");
  app.add_flag("-h,--help", help, "Print this page and exit.");
  app.add_flag("--version", version, "Print the version and exit.");
}

void check_backend(const LaunchOptions& o) {
  if (o.backend && !env::is_backend(*o.backend)) {
    fail(ErrorKind::usage, "--backend is '{}', must be {}", *o.backend, env::backend_choice());
  }
  if (o.cpu && o.backend == "nccl") {
    fail(ErrorKind::usage, "--backend nccl needs GPUs, but --cpu is given; use mpi or gloo");
  }
}

}  // namespace

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
  check_backend(options);
  if (options.command.empty()) {
    fail(ErrorKind::usage, "no program given; usage: accelerate_launch [options] program [arguments]");
  }
  return parsed;
}

}  // namespace accelerate::launch
