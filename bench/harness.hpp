// SPDX-License-Identifier: Apache-2.0
// One side of a comparison. The driver (bench/run) requests rounds of each case, so that our process and the peer's
// process alternate while both stay warm. Started by hand, a bench measures its cases and prints them.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

struct Case {
  std::string name;
  /// Runs one round: returns the mean of `iterations` steps in seconds, or in the case's own unit.
  std::function<double(int64_t iterations)> round;
  /// If true, the case is omitted without a driver.
  bool needs_driver = false;
};

/// An error of one case. The driver reports it and continues with the next row; after any other exception the program
/// ends. Only jobs of one rank may throw it, because other ranks would wait in the collectives of the case.
struct CaseError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A case that measures seconds per step. Two untimed steps precede each round and synchronise the ranks; a round of
/// one step, which takes seconds, has none.
///
/// \param finish  Waits for asynchronous work of the steps (a GPU); part of the measured time.
Case timed(std::string name, const std::function<void()>& step, const std::function<void()>& finish = {});

/// A case of the heap allocations of one step (needs allocations.cpp).
Case counted(std::string name, const std::function<void()>& step, const std::function<int64_t()>& allocations);

/// Seconds of one step in a loop of `iterations`, two untimed before it unless `iterations` is 1.
double seconds_per_step(int64_t iterations, const std::function<void()>& step,
                        const std::function<void()>& finish = {});

/// Serves the driver until it closes the pipe. Every rank has its own pipe: a rank that waits for its turn blocks in
/// read() and takes no time from the other side. Returns the exit code.
///
/// \param about  Versions, backend and threads, for the report.
int serve(int64_t rank, const std::string& about, const std::vector<Case>& cases);

}  // namespace bench
