// SPDX-License-Identifier: Apache-2.0
#include "launch/run/failure_report.hpp"

#include <doctest/doctest.h>

#include <csignal>

using accelerate::launch::describe;
using accelerate::launch::exit_code_of;
using accelerate::launch::failure_report;

TEST_CASE("a status is told in words and as a shell's exit code") {
  CHECK(describe(3 << 8) == "exit code 3");
  CHECK(describe(SIGKILL) == "signal 9 (killed)");
  CHECK(describe(SIGSEGV) == "signal 11 (segmentation fault)");
  CHECK(describe(SIGTERM) == "signal 15 (terminated)");
  CHECK(exit_code_of(3 << 8) == 3);
  CHECK(exit_code_of(0) == 0);
  CHECK(exit_code_of(SIGKILL) == 137);
}

TEST_CASE("who ended before all others is named with its last lines") {
  CHECK(failure_report({.rank = 5, .pid = 4121, .cause = "signal 9 (killed)", .others_were_stopped = true},
                       {.host = "gpu-b", .workers = 8, .last_lines = "loss 0.5\nboom\n"}) ==
        "accelerate_launch: worker 5 (gpu-b, pid 4121) ended first, signal 9 (killed); the others were stopped. Its "
        "last lines follow.\nloss 0.5\nboom\n");
  CHECK(failure_report({.rank = 1, .pid = 12, .cause = "MPI_Abort(7)"}, {.host = "a", .workers = 2}) ==
        "accelerate_launch: worker 1 (a, pid 12) ended first, MPI_Abort(7). It printed nothing.\n");
}

TEST_CASE("who failed after others had ended is not said to have ended first") {
  const auto text = [](std::vector<int64_t> before) {
    return failure_report({.rank = 9, .pid = 12, .cause = "exit code 4", .ended_before = std::move(before)},
                          {.host = "a", .workers = 64});
  };
  CHECK(text({0}) ==
        "accelerate_launch: worker 9 (a, pid 12) failed first, exit code 4, after worker 0 had ended with exit code 0. "
        "It printed nothing.\n");
  CHECK(text({0, 2}).find(", after workers 0 and 2 had ended with exit code 0. ") != std::string::npos);
  CHECK(text({0, 2, 3, 7}).find(", after workers 0, 2, 3 and 7 had ended with exit code 0. ") != std::string::npos);
  CHECK(text({0, 1, 2, 3, 4}).find(", after 5 workers had ended with exit code 0. ") != std::string::npos);
}

TEST_CASE("a worker that stood still is named: it may be what the failed one waited for") {
  CHECK(failure_report({.rank = 0, .pid = 12, .cause = "exit code 1", .suspended = {1}, .others_were_stopped = true},
                       {.host = "a", .workers = 2}) ==
        "accelerate_launch: worker 0 (a, pid 12) ended first, exit code 1, while worker 1 was suspended by a signal; "
        "the others were stopped. It printed nothing.\n");
}

TEST_CASE("a job of one worker, and one that was told to end, need fewer words") {
  CHECK(failure_report({.rank = 0, .pid = 12, .cause = "exit code 3"}, {.host = "a", .last_lines = "printed\n"}) ==
        "accelerate_launch: worker 0 (a, pid 12) ended with exit code 3.\n");
  CHECK(failure_report({.rank = 1, .pid = 12, .cause = "signal 15 (terminated)", .ended_before = {0}},
                       {.host = "a", .workers = 2, .signal = 15}) ==
        "accelerate_launch: worker 1 (a, pid 12) ended with signal 15 (terminated) after signal 15 was passed on.\n");
}
