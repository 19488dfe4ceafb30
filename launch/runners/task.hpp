// SPDX-License-Identifier: Apache-2.0
// One rank that srun or mpirun started: this process becomes it, or, where labels, log files or a watch over it are
// asked for, stands between the two.
#pragma once

#include <string>
#include <vector>

#include "launch/plan/plan.hpp"
#include "launch/runners/call.hpp"

namespace accelerate::launch {

/// The word that makes accelerate_launch stand around a rank; nobody gives it by hand.
inline constexpr const char* task_word = "--task";

/// What of these options another launcher cannot do for its ranks.
bool wants_watched_ranks(const LaunchOptions& options);

/// The program with its arguments, and around it, where that is wanted, "SELF --task --label=1 ... --". Pure.
std::vector<std::string> words_of_rank(const LaunchOptions& options, const std::string& self);

/// The rank is a process of its own.
///
/// returns   its exit code
int run_task(const WorkerPlan& worker, const LaunchOptions& options);
/// The same for a launcher that words_of_rank() asked for: the rank has its place from the environment.
int run_task(const LaunchOptions& options);

/// This process becomes the rank. Throws LaunchError (126, 127) when that cannot be run.
[[noreturn]] void become(const WorkerPlan& worker);

}  // namespace accelerate::launch
