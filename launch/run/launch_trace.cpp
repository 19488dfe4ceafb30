// SPDX-License-Identifier: Apache-2.0
#include "launch/run/launch_trace.hpp"

#include <fmt/format.h>

#include "accelerate/env/parse.hpp"
#include "launch/plan/shell.hpp"

namespace accelerate::launch {
namespace {

/// True for secrets with which any process could join the job.
bool is_secret(std::string_view name) { return name == "ACCELERATE_JOB_ID" || name.starts_with("PMIX_"); }

}  // namespace

std::string launch_trace(const WorkerPlan& worker, pid_t pid, const env::Variables& inherited) {
  std::string text = fmt::format("accelerate_launch: rank {} is process {}:", worker.rank, pid);
  for (const auto& [name, value] : worker.environment) {
    if (env::find(inherited, name) == value) continue;
    text += fmt::format(" {}={}", name, is_secret(name) ? "..." : for_shell(value));
  }
  return fmt::format("{} {}\n", text, for_shell(worker.command));
}

}  // namespace accelerate::launch
