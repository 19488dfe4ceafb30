// SPDX-License-Identifier: Apache-2.0
// One rank that srun or mpirun started, and this launcher around it: a failure is told with the rank, its host and its
// last lines, and labels, log files and a watch over it are had where they are asked for.
#pragma once

#include <string>
#include <vector>

#include "launch/plan/machine.hpp"
#include "launch/plan/plan.hpp"
#include "launch/runners/call.hpp"

namespace accelerate::launch {

/// The word that makes accelerate_launch stand around a rank; nobody gives it by hand.
inline constexpr const char* task_word = "--task";

/// What of these options another launcher cannot do for its ranks.
bool wants_watched_ranks(const LaunchOptions& options);

/// "SELF --task --label=1 ... -- program arguments". Pure.
///
/// self   the launcher's path on all hosts; empty: the program alone
std::vector<std::string> words_of_rank(const LaunchOptions& options, const std::string& self);

/// What a rank keeps to among those of its machine, by the place that its variables give it; none where srun has bound
/// it already. Pure.
std::vector<int> processors_of_task(const env::Variables& variables, const Machine& machine);

/// returns   the rank's exit code
int run_task(WorkerPlan worker, const LaunchOptions& options);
/// The same for a launcher that words_of_rank() asked for: the rank has its place from the environment.
int run_task(const LaunchOptions& options);

}  // namespace accelerate::launch
