// SPDX-License-Identifier: Apache-2.0
// The runners that leave the ranks to others: one row each, and one file for what it starts.
#pragma once

#include <chrono>
#include <optional>

#include "launch/plan/choose.hpp"
#include "launch/plan/options.hpp"
#include "launch/plan/plan.hpp"
#include "launch/run/supervise.hpp"

namespace accelerate::launch {

struct Call {
  const LaunchOptions& options;  ///< resolved
  const env::Variables& variables;
  std::chrono::seconds timeout{};
  SuperviseOptions supervise_options{};
};

/// What the runner would start, as --dry_run prints it; nothing where this machine's launcher starts the ranks itself.
std::optional<LaunchPlan> plan_of(Runner runner, const Call& call);

/// Starts it and waits for the end; returns the exit code.
/// Throws LaunchError when its program is not there.
int run(Runner runner, const Call& call);

}  // namespace accelerate::launch
