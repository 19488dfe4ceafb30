// SPDX-License-Identifier: Apache-2.0
// Runs a function of this program on several ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "launch/plan/options.hpp"

namespace accelerate::launch {

/// Starts this program again as num_processes ranks of this machine. Each rank runs main() to the same call, runs
/// rank_main there and exits. In a rank, earlier calls return at once.
///
/// \param rank_main  Receives `argument`.
/// \param options    Without num_processes, command and options for other machines.
/// \throws LaunchError or Error as the launcher does. Error with the failed rank's kind, number and text. Error (peer)
///         for a rank that ended without an error text. Error (usage) in a rank, and if a rank's main() does not reach
///         this call.
void run_workers(const std::function<void(const std::string&)>& rank_main, int64_t num_processes,
                 const std::string& argument, LaunchOptions options);

}  // namespace accelerate::launch
