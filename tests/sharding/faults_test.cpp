// SPDX-License-Identifier: Apache-2.0
// Real processes over gloo: rank 1 of a sharded training is killed, and rank 0's error names unit and rank.
#include "tests/comm/faults.hpp"

namespace {

void check_killed(const std::string& point, const std::string& call, const std::string& detail = "") {
  CAPTURE(point);
  const auto ranks = faults::run_gloo(point);
  CHECK(ranks[0].code == 3);
  CHECK(ranks[1].code == 137);
  CAPTURE(ranks[0].err);
  CHECK_MESSAGE(ranks[0].out.starts_with("peer: [rank 0 of 2, "), ranks[0].out);
  CHECK_MESSAGE(ranks[0].out.find(call) != std::string::npos, ranks[0].out);
  CHECK_MESSAGE(ranks[0].out.find(detail) != std::string::npos, ranks[0].out);
  CHECK_MESSAGE(ranks[0].out.find("rank 1") != std::string::npos, ranks[0].out);
}

}  // namespace

TEST_CASE("a rank that is killed in a forward, a backward, a step or a save is named by the other rank") {
  check_killed("forward", "forward: unit ");
  check_killed("between", "backward: ", "unit ");
  check_killed("backward", "backward: ", "unit ");
  check_killed("step", "optimizer.step: ");
  check_killed("save", "save_model: ");
}

TEST_CASE("after a rank is killed in save_state() of a sharded model, the checkpoint before it is loaded") {
  const testing::TemporaryFolder folder;
  const std::string checkpoint = folder / "c";
  check_killed("save_state " + checkpoint, "save_state: ");
  for (const auto& rank : faults::run_gloo("load_state " + checkpoint)) {
    CHECK_MESSAGE(rank.code == 0, rank.out, rank.err);
  }
}
