// SPDX-License-Identifier: Apache-2.0
#include "launch/run/reported_failure.hpp"

#include <doctest/doctest.h>

#include <string>

#include "launch/run/failure_report.hpp"
#include "launch/run/hang_report.hpp"

using accelerate::launch::Failure;
using accelerate::launch::failure_report;
using accelerate::launch::FirstReportedFailure;
using accelerate::launch::JobEnd;
using accelerate::launch::reported_failure;
using accelerate::launch::ReportedFailure;

namespace {

/// The report of a per-rank wrapper.
std::string report(const std::string& cause, JobEnd end = {}) {
  end.host = "gpu-b";
  end.is_one_of_many = true;
  end.time = "2026-11-22 15:04:05";
  return failure_report({.rank = 1, .pid = 12, .cause = cause}, end);
}

std::optional<ReportedFailure> first_line(const std::string& text) {
  return reported_failure(text.substr(0, text.find('\n')));
}

}  // namespace

TEST_CASE("the failure report of a rank's launcher is parsed, with and without last lines") {
  const ReportedFailure seven{.cause = "exit code 7", .exit_code = 7};
  CHECK(first_line(report("exit code 7")) == seven);
  CHECK(first_line(report("exit code 7", {.last_lines = "loss nan\n"})) == seven);
  CHECK(first_line(report("exit code 7", {.error = "[rank 1 of 2, gpu-b] step: no"})) == seven);
  CHECK(first_line("1: " + report("exit code 7")) == seven);  // srun --label
  CHECK(first_line(report("signal 9 (killed)")) == ReportedFailure{.cause = "signal 9 (killed)", .exit_code = 137});
  CHECK(first_line(report("signal 11 (segmentation fault)"))->exit_code == 139);
  const auto stalled_time = accelerate::launch::lone_hang_cause({.rank = 1}, std::chrono::seconds(3));
  CHECK(first_line(failure_report({.rank = 1, .pid = 12, .cause = stalled_time, .did_not_join = true},
                                  {.host = "gpu-b", .is_one_of_many = true}))
            ->exit_code == accelerate::launch::kExitCodeOfHang);
}

TEST_CASE("other lines are not parsed as a failure report: a rank's output, or a worker stopped on request") {
  CHECK_FALSE(first_line("exit code 7"));
  CHECK_FALSE(first_line(report("exit code 143", {.signal = 15})));
  CHECK_FALSE(first_line(failure_report({.rank = 1, .cause = "exit code 7"}, {.host = "a"})));  // alone in its job
  CHECK_FALSE(first_line(failure_report({.rank = 1, .cause = "exit code 7"}, {.host = "a", .workers = 2})));
  CHECK_FALSE(first_line("accelerate_launch: worker 1 (a, pid 1, t) ended with exit code 0. It printed nothing."));
  CHECK_FALSE(first_line("accelerate_launch: worker 1 (a, pid 1, t) ended with exit code 999. It printed nothing."));
  CHECK_FALSE(first_line("accelerate_launch: worker 1 (a, pid 1, t) ended with signal 200 (x). It printed nothing."));
}

TEST_CASE("the first of several failures counts, for any sizes of the reads") {
  const std::string all = "up\n" + std::string(10'000, 'x') + "\n" + report("exit code 7") + report("exit code 200");
  FirstReportedFailure whole;
  whole.add(all);
  FirstReportedFailure pieces;
  for (const char byte : all) pieces.add({&byte, 1});
  REQUIRE(whole.found());
  CHECK(whole.found()->exit_code == 7);
  CHECK(pieces.found() == whole.found());
  FirstReportedFailure none;
  none.add("nothing\nof interest");
  CHECK_FALSE(none.found());
}
