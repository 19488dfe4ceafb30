// SPDX-License-Identifier: Apache-2.0
// Ranks that run a function of this very program.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "launch/plan/options.hpp"

namespace accelerate::launch {

/// Starts this program again as num_processes ranks of this machine. Each comes through main() to the same call, runs
/// rank_main there and ends; earlier calls are passed over by it.
///
/// rank_main   gets argument
/// options     without num_processes, command and what concerns other machines
/// Throws what the launcher throws; Error of the failed rank's kind with its number and text; Error (peer) for a rank
/// that ended without a word; Error (usage) in a rank, and where a rank's main() does not come to this call.
void run_workers(const std::function<void(const std::string&)>& rank_main, int64_t num_processes,
                 const std::string& argument, LaunchOptions options);

}  // namespace accelerate::launch
