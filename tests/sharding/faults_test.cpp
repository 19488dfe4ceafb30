// SPDX-License-Identifier: Apache-2.0
// Real processes over gloo: rank 1 of a sharded training is killed, and rank 0's error names unit and rank.
#include "tests/comm/faults.hpp"

namespace {

void check_error(const faults::Ended& ran, const std::string& call, const std::string& detail) {
  CAPTURE(ran.err);
  CHECK_MESSAGE(ran.out.starts_with("peer: [rank 0 of 2, "), ran.out);
  for (const auto& part : {call, detail, std::string("rank 1")}) {
    CHECK_MESSAGE(ran.out.find(part) != std::string::npos, ran.out);
  }
}

void check_killed(const std::string& point, const std::string& call, const std::string& detail = "") {
  CAPTURE(point);
  const auto ranks = faults::run_gloo(point);
  CHECK(ranks[0].code == 3);
  CHECK(ranks[1].code == 137);
  check_error(ranks[0], call, detail);
}

}  // namespace

TEST_CASE("a rank that is killed in a forward, a backward, a step or a save is named by the other rank") {
  check_killed("forward", "forward: unit ");
  // The other rank waits for a gather or a reduction.
  check_killed("between", "backward: ", "unit ");
  check_killed("backward", "backward: ", "unit ");
  check_killed("step", "optimizer.step: ");
  check_killed("save", "save_model: ");
}

// Other starts, on one host and on two: tests/hosts/fault_test.py.
TEST_CASE("accelerate_launch names a rank that is killed in a backward, and the other rank names it with the unit") {
  std::vector<std::string> commands;
  for (const std::string backend : {"gloo", "mpi"}) {
    if (backend == "mpi" && !ACCELERATE_HAS_MPI) continue;
    // Without the trap the launcher may stop rank 0 before its error.
    commands.push_back(fmt::format(
        "{} --cpu --num_processes 2 --main_process_port 0 --grace_time 20 --backend {} sh -c \"trap '' TERM; "
        "exec {} backward\"",
        ACCELERATE_LAUNCH, backend, FAULT_RANKS));
  }
  for (const auto& job : faults::run(commands)) {
    check_error(job, "backward: ", "unit ");
    CHECK(job.code == 137);
    CHECK_MESSAGE(job.err.find("accelerate_launch: worker 1 (") != std::string::npos, job.err);
    CHECK_MESSAGE(job.err.find(" ended first, signal 9 (killed); the others were stopped.") != std::string::npos,
                  job.err);
  }
}

TEST_CASE("after a rank is killed in save_state() of a sharded model, the checkpoint before it is loaded") {
  const testing::TemporaryFolder folder;
  const std::string checkpoint = folder / "c";
  check_killed("save_state " + checkpoint, "save_state: ");
  for (const auto& rank : faults::run_gloo("load_state " + checkpoint)) {
    CHECK_MESSAGE(rank.code == 0, rank.out, rank.err);
  }
}
