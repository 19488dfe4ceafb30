// SPDX-License-Identifier: Apache-2.0
// One side of a comparison: cases that the driver (bench/run) asks for, round by round, so that ours and the peer's
// take turns while both processes stay warm. Started by hand, a bench measures its cases and prints them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace bench {

struct Case {
  std::string name;
  /// One round: the mean of `iterations` steps, in seconds or whatever the case counts.
  std::function<double(int64_t iterations)> round;
};

/// A case of the seconds of one step; two more steps go before, untimed: they bring the ranks together.
///
/// finish   waits for what the steps left running (a GPU); part of the time
Case timed(std::string name, const std::function<void()>& step, const std::function<void()>& finish = {});

/// A case of the heap allocations of one step (needs allocations.cpp).
Case counted(std::string name, const std::function<void()>& step, const std::function<int64_t()>& allocations);

/// Seconds of one step in a loop of `iterations`, two untimed before it.
double seconds_per_step(int64_t iterations, const std::function<void()>& step,
                        const std::function<void()>& finish = {});

/// Answers the driver until it hangs up, every rank on a pipe of its own: a rank that waits for its turn blocks in
/// read() and takes no time from the other side. Returns the exit code.
///
/// about   versions, backend and threads, for people
int serve(int64_t rank, const std::string& about, const std::vector<Case>& cases);

}  // namespace bench
