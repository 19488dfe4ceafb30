// SPDX-License-Identifier: Apache-2.0
#include "launch/runners/runner_context.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <system_error>

#include "accelerate/base/error.hpp"
#include "launch/plan/error.hpp"
#include "launch/plan/output_options.hpp"

namespace accelerate::launch {

void RunnerContext::note(const std::optional<std::string>& line) const {
  if (line && !options.quiet.value_or(false)) fmt::print(stderr, "accelerate_launch: {}\n", *line);
}

void check_version(const std::string& of_starter) {
  if (of_starter == ACCELERATE_VERSION) return;
  fail(ErrorKind::environment,
       "{} has accelerate_launch {}, the host that starts the job has {}; they must be the same", base::host_name(),
       ACCELERATE_VERSION, of_starter);
}

SuperviseOptions supervise_options(const LaunchOptions& options) {
  return {.grace = value_of(options, &LaunchOptions::grace_time),
          .hang = value_of(options, &LaunchOptions::hang_timeout),
          .resume_code = static_cast<int>(options.resume_code.value_or(0)),
          .output = output_options(options)};
}

std::string current_folder() {
  std::error_code failed;
  const auto folder = std::filesystem::current_path(failed);
  if (!failed) return folder.string();
  fail(ErrorKind::environment, "the folder that this was started in cannot be named: {}; cd to an existing one",
       failed.message());
}

}  // namespace accelerate::launch
