// SPDX-License-Identifier: Apache-2.0
// What every runner gets: the launcher was called, and this is what is known.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "launch/plan/options.hpp"
#include "launch/plan/plan.hpp"
#include "launch/run/supervise_options.hpp"

namespace accelerate::launch {

struct Call {
  const LaunchOptions& options;  ///< resolved
  const env::Variables& variables;
  std::chrono::seconds timeout{};  ///< longest wait for a peer

  /// A line on stderr, unless the launcher is to be quiet.
  void note(const std::optional<std::string>& line) const;
};

/// Throws LaunchError (1) when the launcher that started the job, on whichever host, is of another version.
void check_version(const std::string& of_starter);

/// How ranks that this launcher starts itself are supervised. Throws LaunchError (2) for options that contradict one
/// another.
SuperviseOptions supervise_options(const LaunchOptions& options);

/// Where the ranks run. Throws LaunchError (1) when it was removed.
std::string current_folder();

}  // namespace accelerate::launch
