// SPDX-License-Identifier: Apache-2.0
// Real processes over gloo: rank 1 of a pipeline is killed, and rank 0's error names stage, micro-batch and direction.
#include "tests/comm/faults.hpp"

namespace {

void check_killed(const std::string& point, const std::string& text) {
  CAPTURE(point);
  const int port = faults::free_port();
  const auto ranks = faults::run({faults::rank_command(0, 2, port, point), faults::rank_command(1, 2, port, point)});
  CHECK(ranks[0].code == 3);
  CHECK(ranks[1].code == 137);
  CAPTURE(ranks[0].err);
  CHECK_MESSAGE(ranks[0].out.starts_with("peer: [rank 0 of 2, "), ranks[0].out);
  CHECK_MESSAGE(ranks[0].out.find(text) != std::string::npos, ranks[0].out);
  CHECK_MESSAGE(ranks[0].out.find("rank 1") != std::string::npos, ranks[0].out);
}

}  // namespace

TEST_CASE("a rank that is killed in a forward, in a backward or between steps is named with the micro-batch") {
  check_killed("forward", "Pipeline.train_step: stage 0, micro-batch ");
  check_killed("backward", "Pipeline.train_step: stage 0, micro-batch ");
  check_killed("between", "Pipeline.train_step: ");
}

TEST_CASE("the error names a rank that is killed before a prepared pipeline averages its gradients") {
  check_killed("average",
               "Pipeline.train_step: the gradients of this stage are not averaged over the data parallel ranks: ");
}
