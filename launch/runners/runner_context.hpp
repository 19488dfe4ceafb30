// SPDX-License-Identifier: Apache-2.0
// Input of every runner: the launcher's command line and everything derived from it.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "launch/plan/options.hpp"
#include "launch/plan/plan.hpp"
#include "launch/run/supervise_options.hpp"

namespace accelerate::launch {

struct RunnerContext {
  const LaunchOptions& options;  ///< resolved options
  const env::Variables& variables;
  std::chrono::seconds timeout{};  ///< maximum wait for another rank

  /// Writes a line to stderr, unless --quiet is set.
  void note(const std::optional<std::string>& line) const;
};

/// \throws LaunchError (1) if the launcher that started the job, on any host, has another version.
void check_version(const std::string& of_starter);

/// Returns the supervision options for ranks that this launcher starts itself.
/// \throws LaunchError (2) if options contradict each other.
SuperviseOptions supervise_options(const LaunchOptions& options);

/// Returns the working folder of the ranks. \throws LaunchError (1) if it has been removed.
std::string current_folder();

}  // namespace accelerate::launch
