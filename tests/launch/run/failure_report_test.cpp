// SPDX-License-Identifier: Apache-2.0
#include "launch/run/failure_report.hpp"

#include <doctest/doctest.h>

#include <csignal>

using accelerate::launch::exit_code_of;
using accelerate::launch::Failure;
using accelerate::launch::failure_report;
using accelerate::launch::wait_status_text;

TEST_CASE("a status is reported as text and as a shell's exit code") {
  CHECK(wait_status_text(3 << 8) == "exit code 3");
  CHECK(wait_status_text(SIGKILL) == "signal 9 (killed)");
  CHECK(wait_status_text(SIGSEGV) == "signal 11 (segmentation fault)");
  CHECK(wait_status_text(SIGTERM) == "signal 15 (terminated)");
  CHECK(exit_code_of(3 << 8) == 3);
  CHECK(exit_code_of(0) == 0);
  CHECK(exit_code_of(SIGKILL) == 137);
}

TEST_CASE("the worker that ended first is named with its last lines") {
  CHECK(failure_report(
            {.rank = 5, .pid = 4121, .cause = "signal 9 (killed)", .others_terminated = true},
            {.host = "gpu-b", .workers = 8, .time = "2026-11-22 15:04:05", .last_lines = "loss 0.5\nboom\n"}) ==
        "accelerate_launch: worker 5 (gpu-b, pid 4121, 2026-11-22 15:04:05) ended first, signal 9 (killed); the others "
        "were stopped. Its "
        "last lines follow.\nloss 0.5\nboom\n");
  CHECK(failure_report({.rank = 1, .pid = 12, .cause = "MPI_Abort(7)"}, {.host = "a", .workers = 2, .time = "t"}) ==
        "accelerate_launch: worker 1 (a, pid 12, t) ended first, MPI_Abort(7). It printed nothing.\n");
}

TEST_CASE("the last lines of a machine's only rank are printed again") {
  const Failure failure{.rank = 3, .pid = 12, .cause = "exit code 7"};
  CHECK(failure_report(failure, {.host = "a", .is_one_of_many = true, .time = "t", .last_lines = "boom\n"}) ==
        "accelerate_launch: worker 3 (a, pid 12, t) ended with exit code 7. Its last lines follow.\nboom\n");
  CHECK(failure_report(failure, {.host = "a", .time = "t", .last_lines = "boom\n"}) ==
        "accelerate_launch: worker 3 (a, pid 12, t) ended with exit code 7.\n");
}

TEST_CASE("a worker that failed after others had exited is not reported as \"ended first\"") {
  const auto text = [](std::vector<int64_t> before) {
    return failure_report({.rank = 9, .pid = 12, .cause = "exit code 4", .ended_before = std::move(before)},
                          {.host = "a", .workers = 64, .time = "t"});
  };
  CHECK(text({0}) ==
        "accelerate_launch: worker 9 (a, pid 12, t) failed first, exit code 4, after worker 0 had ended with exit code "
        "0. "
        "It printed nothing.\n");
  CHECK(text({0, 2}).find(", after workers 0 and 2 had ended with exit code 0. ") != std::string::npos);
  CHECK(text({0, 2, 3, 7}).find(", after workers 0, 2, 3 and 7 had ended with exit code 0. ") != std::string::npos);
  CHECK(text({0, 1, 2, 3, 4}).find(", after 5 workers had ended with exit code 0. ") != std::string::npos);
}

TEST_CASE("a stalled worker is named, because the failed one may have waited for it") {
  CHECK(
      failure_report({.rank = 0, .pid = 12, .cause = "exit code 1", .suspended = {1}, .others_terminated = true},
                     {.host = "a", .workers = 2, .time = "t"}) ==
      "accelerate_launch: worker 0 (a, pid 12, t) ended first, exit code 1, while worker 1 was suspended by a signal; "
      "the others were stopped. It printed nothing.\n");
}

TEST_CASE("if ranks of all machines are stalled, a machine without a missing rank names no process") {
  Failure failure{
      .rank = 0, .pid = -1, .cause = "no rank has moved for 30 s; worker 2 is missing", .did_not_join = true};
  CHECK(failure_report(failure, {.host = "a", .workers = 2, .time = "t"}) ==
        "accelerate_launch: no rank has moved for 30 s; worker 2 is missing (a, t); the ranks of this machine were "
        "stopped\n");
  failure.pid = 12;
  CHECK(failure_report(failure, {.host = "a", .workers = 2, .time = "t"}) ==
        "accelerate_launch: no rank has moved for 30 s; worker 2 is missing (a, pid 12, t); all were stopped. It "
        "printed nothing.\n");
}

TEST_CASE("reports about a single worker, and about a requested end, are shorter") {
  CHECK(failure_report({.rank = 0, .pid = 12, .cause = "exit code 3"},
                       {.host = "a", .time = "t", .last_lines = "printed\n"}) ==
        "accelerate_launch: worker 0 (a, pid 12, t) ended with exit code 3.\n");
  CHECK(
      failure_report({.rank = 1, .pid = 12, .cause = "signal 15 (terminated)", .ended_before = {0}},
                     {.host = "a", .workers = 2, .signal = 15, .time = "t"}) ==
      "accelerate_launch: worker 1 (a, pid 12, t) ended with signal 15 (terminated) after signal 15 was forwarded.\n");
}

TEST_CASE("a failed machine is named by its host without last lines; mpirun and srun are named as such") {
  CHECK(failure_report({.rank = 1, .pid = 12, .cause = "exit code 7", .others_terminated = true},
                       {.noun = "machine", .host = "gpu-b", .workers = 2, .time = "t", .last_lines = "output\n"}) ==
        "accelerate_launch: machine 1 (gpu-b, t) ended with exit code 7; the others were stopped.\n");
  CHECK(failure_report({.rank = 0, .pid = 12, .cause = "exit code 7"},
                       {.noun = "mpirun", .host = "a", .time = "t", .last_lines = "output\n"}) ==
        "accelerate_launch: mpirun (a, pid 12, t) ended with exit code 7.\n");
}

TEST_CASE("the worker's own error text is printed once before its last lines") {
  const auto text = [](std::string lines, std::string error, size_t workers = 2) {
    return failure_report(
        {.rank = 0, .pid = 12, .cause = "exit code 1"},
        {.host = "a", .workers = workers, .time = "t", .last_lines = std::move(lines), .error = std::move(error)});
  };
  const std::string head = "accelerate_launch: worker 0 (a, pid 12, t) ended first, exit code 1. Its error follows.\n";
  CHECK(text("loss\n  what():  shard: 0\nAborted\n", "shard: 0") ==
        head + "shard: 0\nIts last lines follow.\nloss\nAborted\n");
  CHECK(text("shard: 0\n", "shard: 0") == head + "shard: 0\n");
  CHECK(text("", "two\nlines") == head + "two\nlines\n");
  CHECK(text("a: two\nlines\nb\n", "two\nlines") == head + "two\nlines\nIts last lines follow.\nb\n");
  const std::string alone = "accelerate_launch: worker 0 (a, pid 12, t) ended with exit code 1.";
  CHECK(text("shard: 0\n", "shard: 0", 1) == alone + "\n");
  CHECK(text("loss\n", "shard: 0", 1) == alone + " Its error follows.\nshard: 0\n");
}

TEST_CASE("an older error of another worker is reported too") {
  CHECK(
      failure_report({.rank = 0, .pid = 12, .cause = "exit code 1"},
                     {.host = "a", .workers = 2, .time = "t", .error = "lost", .earlier_error = {{1, "full disk"}}}) ==
      "accelerate_launch: worker 0 (a, pid 12, t) ended first, exit code 1. Its error follows.\nlost\n"
      "Worker 1 had an error before:\nfull disk\n");
}

TEST_CASE("the time has a date and seconds") {
  const auto now = accelerate::launch::clock_time();
  REQUIRE(now.size() == 19);
  CHECK(now.find_first_not_of("0123456789-: ") == std::string::npos);
}
