// SPDX-License-Identifier: Apache-2.0
// Names the missing ranks of a hanging job.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "accelerate/base/heartbeat.hpp"

namespace accelerate::launch {

inline constexpr int kExitCodeOfHang = 124;  ///< as in coreutils' timeout

/// Visible state of a running rank.
struct StalledRank {
  int64_t rank = 0;
  pid_t pid = -1;
  base::Heartbeat beat{};
  std::string does{};  ///< "is stopped", "computes" or "waits"
};

/// Returns the ranks for which the others wait: ranks that are in no operation, or, if all ranks wait, those that are
/// behind the most advanced rank. Empty if no rank waits. Pure function.
std::vector<int64_t> missing_ranks(const std::vector<StalledRank>& ranks);

/// Returns the ranks that wait in no operation: ranks of other machines may wait for them. Pure function.
std::vector<int64_t> idle_ranks(const std::vector<StalledRank>& ranks);

/// Returns "no rank has moved for 30 s; worker 1 is missing, workers 0 and 2 wait in all_reduce, operation 41 of world
/// ([1024] float32)".
///
/// \param ranks  All running ranks of the job. Pure function.
std::string hang_cause(const std::vector<StalledRank>& ranks, std::chrono::milliseconds stalled_time);
/// The same for a rank without visible peers: "worker 0 has not moved for 30 s and waits in all_reduce, ...; the job's
/// other ranks are not seen from here, where each was started by itself". Pure function.
std::string lone_hang_cause(const StalledRank& rank, std::chrono::milliseconds stalled_time);

/// Returns one line per rank: "accelerate_launch: worker 1 (pid 12) computes; it made 7 steps, its last operation is
/// ...". Pure function.
std::string hang_lines(const std::vector<StalledRank>& ranks);

}  // namespace accelerate::launch
