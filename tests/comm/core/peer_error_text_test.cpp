// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/core/peer_error_text.hpp"

#include "tests/testing.hpp"

using namespace accelerate::comm;

TEST_CASE("error texts of libraries are reported without source locations, conditions and backtraces") {
  CHECK(plain("[enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to "
              "find address for: eth7") == "Unable to find address for: eth7");
  CHECK(plain("[enforce fail at device.cc:84] ifa != nullptr. ") == "");
  CHECK(plain("Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error") ==
        "Gloo connectFullMesh failed with no error");
  CHECK(plain("connect [127.0.0.1]:4711: Connection refused") == "connect [127.0.0.1]:4711: Connection refused");
  CHECK(plain("failed to recv, got 0 bytes\nException raised from recvBytes at Utils.hpp:678\nframe #0: x") ==
        "failed to recv, got 0 bytes");
}

TEST_CASE("a connect failure names the timeout only if it has passed") {
  using namespace std::chrono_literals;
  CHECK(connect_failure("gloo", 4, 2s, 2100ms, "wait timeout") ==
        "gloo could not connect the 4 ranks within 2 s; a rank did not join or cannot be reached");
  CHECK(connect_failure("gloo", 4, 2s, 300ms, "Connection closed by peer") ==
        "gloo could not connect the 4 ranks, it failed after 0.3 s: Connection closed by peer");
}

TEST_CASE("the report lists the ranks in other calls and the ranks without a response") {
  const auto in = [](Operation operation, int64_t sequence) {
    return CollectiveFingerprint{.operation = operation, .sequence = sequence};
  };
  const CollectiveFingerprint mine = in(Operation::all_reduce, 4);
  const std::vector<int64_t> job_ranks{0, 2, 4, 6};
  const auto say = [&](const std::vector<std::optional<CollectiveFingerprint>>& answers) {
    return peer_status_text(mine, answers, job_ranks).text;
  };
  const auto missing = [&](const std::vector<std::optional<CollectiveFingerprint>>& answers) {
    return peer_status_text(mine, answers, job_ranks).missing_ranks;
  };
  CHECK(say({mine, mine, mine, mine}) == "");
  CHECK(say({mine, std::nullopt, mine, mine}) == "no response from rank 2.");
  CHECK(say({mine, std::nullopt, in(Operation::barrier, 5), std::nullopt}) ==
        "rank 4 is in operation 5 (barrier). no response from ranks 2, 6.");
  CHECK(say({mine, in(Operation::recv, 0), mine, mine}) == "rank 2 is in a recv.");
  using Ranks = std::vector<int64_t>;
  CHECK(missing({mine, mine, mine, mine}) == Ranks{});
  CHECK(missing({mine, std::nullopt, mine, mine}) == Ranks{2});
  CHECK(missing({mine, std::nullopt, in(Operation::barrier, 5), in(Operation::barrier, 3)}) == Ranks{2, 6});
  CHECK(missing({mine, in(Operation::recv, 0), mine, mine}) == Ranks{2});
}
