// SPDX-License-Identifier: Apache-2.0
#include "launch/runners/task.hpp"

#include <unistd.h>

#include <cerrno>

#include "launch/run/spawn.hpp"
#include "launch/run/supervise.hpp"
#include "launch/run/why_not_run.hpp"
#include "launch/runners/travel.hpp"

namespace accelerate::launch {
namespace {

/// What is done around each rank.
LaunchOptions around_a_rank(const LaunchOptions& options) {
  LaunchOptions around{.log_dir = options.log_dir,
                       .tee = options.tee,
                       .redirects = options.redirects,
                       .local_ranks_filter = options.local_ranks_filter,
                       .label = options.label,
                       .quiet = options.quiet,
                       .hang_timeout = options.hang_timeout,
                       .grace_time = options.grace_time};
  around.settings.debug = options.settings.debug;
  return around;
}

}  // namespace

bool wants_watched_ranks(const LaunchOptions& options) {
  return options.log_dir || options.local_ranks_filter || options.label.value_or(false) || options.hang_timeout ||
         options.settings.debug.value_or(false);
}

std::vector<std::string> words_of_rank(const LaunchOptions& options, const std::string& self) {
  std::vector<std::string> words;
  if (wants_watched_ranks(options)) {
    words = {self, task_word};
    const auto around = arguments_of(around_a_rank(options));
    words.insert(words.end(), around.begin(), around.end());
    words.emplace_back("--");
  }
  words.insert(words.end(), options.command.begin(), options.command.end());
  return words;
}

int run_task(const WorkerPlan& worker, const LaunchOptions& options) {
  const auto supervised = supervise_options(options);
  if (!wants_watched_ranks(options)) become(worker);
  return supervise({.runner = Runner::task, .workers = {worker}}, supervised);
}

int run_task(const LaunchOptions& options) {
  auto variables = env::current_variables();
  const auto place = env::read(variables);
  set_for_ranks(variables, options);
  return run_task({.rank = place.rank,
                   .local_rank = place.local_rank,
                   .command = options.command,
                   .environment = std::move(variables)},
                  options);
}

void become(const WorkerPlan& worker) {
  const std::string program = find_program(worker.command.front(), worker.environment);
  std::vector<std::string> arguments = worker.command;
  std::vector<std::string> variables;
  for (const auto& [name, value] : worker.environment) variables.push_back(name + "=" + value);
  const auto pointers_to = [](std::vector<std::string>& words) {
    std::vector<char*> pointers;
    for (auto& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    return pointers;
  };
  execve(program.c_str(), pointers_to(arguments).data(), pointers_to(variables).data());
  fail_with(126, ErrorKind::environment, "{} cannot be run: {}", worker.command.front(), why_not_run(program, errno));
}

}  // namespace accelerate::launch
