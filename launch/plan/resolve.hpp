// SPDX-License-Identifier: Apache-2.0
// The command line of accelerate_launch beside the other places where the library's settings may stand.
#pragma once

#include <string>
#include <vector>

#include "accelerate/env/settings.hpp"
#include "launch/plan/options.hpp"

namespace accelerate::launch {

struct Resolved {
  /// With what the environment and the config file say of the launcher's own options, with the file's settings, and
  /// with --cpu and --backend where another setting or the environment asks for the same.
  LaunchOptions options{};
  /// The options, and the table's default where nothing is said; unset: there is none, or it is found out later.
  LaunchOptions values{};
  /// Longest wait for a peer, as far as the code does not say otherwise.
  std::chrono::seconds timeout{};
  /// One sentence for every value that lost to a different one, and one for keys of the file that mean nothing here.
  std::vector<std::string> conflicts{};
};

/// Command line > environment > config file, as the ranks will see them. Pure.
///
/// Throws Error (environment) for a value that the library would refuse, with where it came from.
Resolved resolve(const LaunchOptions& options, const env::Variables& inherited, const env::Config& config);

}  // namespace accelerate::launch
