// SPDX-License-Identifier: Apache-2.0
// Combines the command line of accelerate_launch with the other sources of settings.
#pragma once

#include <string>
#include <vector>

#include "accelerate/env/settings.hpp"
#include "launch/plan/options.hpp"

namespace accelerate::launch {

struct Resolved {
  /// Options of the command line, completed with the launcher options and settings from environment and config file,
  /// and with --cpu and --backend if another setting or variable implies them.
  LaunchOptions options{};
  /// As `options`, with the table's defaults. Unset fields have no default or are determined later.
  LaunchOptions values{};
  /// Maximum wait for another rank, unless the program sets its own.
  std::chrono::seconds timeout{};
  /// One sentence for every value that a different one overrides, and one for keys of the file without a meaning here.
  std::vector<std::string> conflicts{};
};

/// Precedence: command line > environment > config file, as for the ranks. Pure function.
///
/// \throws Error (environment) for a value that the library would refuse, with its source.
Resolved resolve_options(const LaunchOptions& options, const env::Variables& inherited, const env::Config& config);

}  // namespace accelerate::launch
