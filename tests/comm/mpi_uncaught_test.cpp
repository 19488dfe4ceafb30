// SPDX-License-Identifier: Apache-2.0
// A rank of an MPI job ends by an exception or a signal: checks the output and the exit code.
#include "tests/comm/faults.hpp"

using namespace faults;  // NOLINT

namespace {

/// Runs two ranks under accelerate_launch, with `variables` in their environment.
Ended launched(const std::string& scenario, const std::string& variables = "") {
  return run({fmt::format("env {} {} --cpu --num_processes 2 --backend mpi {} {}", variables, ACCELERATE_LAUNCH,
                          UNCAUGHT, scenario)})[0];
}

/// The same under mpirun, with additional mpirun options.
Ended under_mpirun(const std::string& scenario, const std::string& options = "") {
  return run(
      {fmt::format("mpirun --allow-run-as-root --oversubscribe -np 2 {} {} {}", options, UNCAUGHT, scenario)})[0];
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

const std::string trace = "*** Process received signal ***";
const std::string thrown = "  what():  sample 17 has no label\n";

}  // namespace

TEST_CASE("mpi: a rank prints an uncaught exception once, without a stack trace, and exits with 134") {
  const auto by_mpirun = under_mpirun("throw");
  CAPTURE(by_mpirun.err);
  CHECK(count(by_mpirun.err, thrown) == 1);
  CHECK(count(by_mpirun.err, trace) == 0);
  CHECK(by_mpirun.code == 134);
}

TEST_CASE("mpi: the launcher repeats the first failed rank's exception, without a stack trace") {
  const auto job = launched("throw");
  CAPTURE(job.err);
  const auto report = job.err.find("ended first, signal 6 (aborted); the others were stopped. Its last lines follow.");
  REQUIRE(report != std::string::npos);
  CHECK(count(job.err.substr(report), thrown) == 1);
  CHECK(count(job.err.substr(0, report), thrown) == 1);
  CHECK(count(job.err, trace) == 0);
  CHECK(job.code == 134);
}

TEST_CASE("mpi: the launcher's report contains an uncaught Error once, without a stack trace") {
  const auto job = launched("error");
  CAPTURE(job.err);
  const auto report = job.err.find("ended first, signal 6 (aborted); the others were stopped. Its error follows.\n");
  REQUIRE(report != std::string::npos);
  CHECK(count(job.err.substr(report), "broadcast: ") == 1);
  CHECK(count(job.err, trace) == 0);
  CHECK(job.code == 134);
}

TEST_CASE("mpi: the user's value of opal_signal is kept") {
  CHECK(count(launched("throw", "OMPI_MCA_opal_signal=6").err, trace) >= 1);
  CHECK(count(under_mpirun("throw", "--mca opal_signal 6").err, trace) == 1);
}

TEST_CASE("mpi: a segmentation fault keeps the stack trace of Open MPI") {
  const auto job = launched("segfault", "ASAN_OPTIONS=handle_segv=0");
  CAPTURE(job.err);
  CHECK(count(job.err, trace) >= 1);
  CHECK(job.code == 139);
}

TEST_CASE("mpi: the program's handler for SIGABRT runs") {
  const auto job = launched("own_handler");
  CAPTURE(job.err);
  CHECK(count(job.err, "the handler of the program\n") >= 1);
  CHECK(count(job.err, trace) == 0);
  CHECK(job.code == 42);
}
