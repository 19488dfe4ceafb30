// SPDX-License-Identifier: Apache-2.0
#include "launch/options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

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

void require(bool ok, const char* option, int64_t value, const char* rule) {
  if (!ok) throw LaunchError(2, fmt::format("accelerate_launch: {} is {}, must be {}", option, value, rule));
}

void check(const LaunchOptions& o) {
  if (o.num_processes) require(*o.num_processes >= 1, "--num_processes", *o.num_processes, "at least 1");
  if (o.main_process_port) {
    require(*o.main_process_port >= 0 && *o.main_process_port <= 65535, "--main_process_port", *o.main_process_port,
            "0 (a free port) to 65535");
  }
  if (o.num_cpu_threads_per_process) {
    require(*o.num_cpu_threads_per_process >= 1, "--num_cpu_threads_per_process", *o.num_cpu_threads_per_process,
            "at least 1");
  }
  if (o.gradient_accumulation_steps) {
    require(*o.gradient_accumulation_steps >= 1, "--gradient_accumulation_steps", *o.gradient_accumulation_steps,
            "at least 1");
  }
  if (o.backend && *o.backend != "mpi" && *o.backend != "gloo" && *o.backend != "nccl") {
    throw LaunchError(2, fmt::format("accelerate_launch: --backend is {}, must be mpi, gloo or nccl", *o.backend));
  }
  if (o.cpu && o.backend == "nccl") {
    throw LaunchError(2, "accelerate_launch: --backend nccl needs GPUs, but --cpu is given; use mpi or gloo");
  }
}

void declare(CLI::App& app, LaunchOptions& o, bool& help, bool& version) {
  app.add_flag(both_spellings("cpu"), o.cpu, "Train on the CPU although GPUs are there.");
  app.add_option(both_spellings("num_processes"), o.num_processes, "Ranks to start: one per visible GPU, else 1.")
      ->type_name("N");
  app.add_option(both_spellings("backend"), o.backend, "mpi, gloo or nccl; nccl on GPUs, else mpi where it is there.")
      ->type_name("NAME");
  app.add_option(both_spellings("main_process_port"), o.main_process_port,
                 "Where rank 0 listens on 127.0.0.1: 29500; 0 takes a free port.")
      ->type_name("PORT");
  app.add_option(both_spellings("num_cpu_threads_per_process"), o.num_cpu_threads_per_process,
                 "OMP_NUM_THREADS of each rank: physical cores / ranks.")
      ->type_name("N");
  app.add_option(both_spellings("gradient_accumulation_steps"), o.gradient_accumulation_steps,
                 "Micro-batches per optimizer step.")
      ->type_name("N");
  app.add_flag(both_spellings("debug"), o.debug, "Compare every collective across the ranks first.");
  app.add_flag("--help", help, "Print this page and exit.");
  app.add_flag("--version", version, "Print the version and exit.");
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
    throw LaunchError(2, fmt::format("accelerate_launch: {}; see accelerate_launch --help", error.what()));
  }
  if (help) parsed.print = app.help();
  if (version) parsed.print = "accelerate_launch " ACCELERATE_VERSION "\n";
  if (parsed.print) return parsed;

  options.command = app.remaining();
  if (!options.command.empty() && options.command.front() == "--") {
    options.command.erase(options.command.begin());
  } else if (!options.command.empty() && options.command.front().starts_with('-')) {
    throw LaunchError(2, fmt::format("accelerate_launch: {} is not an option; see accelerate_launch --help",
                                     options.command.front()));
  }
  check(options);
  if (options.command.empty()) {
    throw LaunchError(2, "accelerate_launch: no program given; usage: accelerate_launch [options] program [arguments]");
  }
  return parsed;
}

}  // namespace accelerate::launch
