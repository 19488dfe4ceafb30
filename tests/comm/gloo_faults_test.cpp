// SPDX-License-Identifier: Apache-2.0
// Real processes over gloo that die, do not join or disagree: the exact error texts of their peers.
#include <algorithm>

#include "tests/comm/faults.hpp"

using namespace faults;  // NOLINT

TEST_CASE("gloo: a rank that misses an operation is named after the timeout") {
  for (const auto& transport : kGlooTransports) {
    CAPTURE(transport);
    const auto ranks = run_gloo("late", free_port(), "127.0.0.1", transport);
    const std::string reason = "waited 2 s in operation 1 ([4] float32); no response from rank 1.";
    CHECK(ranks[0].out == at_rank(0, "all_reduce: " + reason) +
                              at_rank(0, "barrier: this group is broken since operation 1 (all_reduce): " + reason));
    CHECK(ranks[0].code == 3);
    check_quiet(ranks[0]);
  }
}

TEST_CASE("gloo: errors of a group with a name for its ranks contain the name") {
  for (const auto& transport : kGlooTransports) {
    CAPTURE(transport);
    const std::string reason =
        "waited 2 s in operation 1 ([4] float32) over the 2 tensor parallel ranks; no response from rank 1.";
    CHECK(run_gloo("late_named", free_port(), "127.0.0.1", transport)[0].out ==
          at_rank(0, "all_reduce: " + reason) +
              at_rank(0, "barrier: this group of 2 tensor parallel ranks is broken since operation 1 (all_reduce): " +
                             reason));
  }
}

TEST_CASE("gloo: the operation after one that failed names the missing rank, too") {
  for (const auto& transport : kGlooTransports) {
    CAPTURE(transport);
    const auto ranks = run_gloo("late_second", free_port(), "127.0.0.1", transport);
    CHECK(ranks[0].out ==
          at_rank(0, "all_reduce: waited 0.5 s in operation 2 ([3] float32); no response from rank 1."));
  }
}

TEST_CASE("gloo: every waiting operation names the missing rank") {
  for (const auto& transport : kGlooTransports) {
    CAPTURE(transport);
    check_all_name_rank_1(run_gloo("late_to_all", free_port(), "127.0.0.1", transport)[0].out,
                          "no response from rank 1.\n");
  }
  for (const auto& transport : kGlooTransports) {
    CAPTURE(transport);
    CHECK(run_gloo("late_barrier", free_port(), "127.0.0.1", transport)[0].out ==
          at_rank(0, "barrier: waited 2 s in operation 1 (no tensor); no response from rank 1."));
    CHECK(run_gloo("late_message", free_port(), "127.0.0.1", transport)[0].out ==
          at_rank(0, fmt::format("recv: waited 2 s in a message ([2] float32); {}.",
                                 transport.empty() ? "rank 1 did not join" : "no response from rank 1")));
  }
}

TEST_CASE("gloo: reduce_scatter has its own deadline, and later operations name the failed one") {
  CHECK(run_gloo("rows_late")[0].out ==
        at_rank(0, "reduce_scatter: waited 0.5 s in operation 1 ([4] float32); no response from rank 1."));
  const std::string reason = "waited 0.5 s in operation 1 ([2] float32); no response from rank 1.";
  CHECK(run_gloo("late_and_next")[0].out ==
        at_rank(0, "all_reduce: " + reason) +
            at_rank(0, "all_reduce: this group is broken since operation 1 (all_reduce): " + reason));
}

TEST_CASE("gloo: a large all_gather has one deadline, and names a rank that is missing or failed") {
  CHECK(run_gloo("large_gather_late")[0].out ==
        at_rank(0, "all_gather: waited 0.5 s in operation 1 ([65536] float32); no response from rank 1."));
  CHECK(run_gloo("large_gather")[0].out == at_rank(0,
                                                   "all_gather: operation 2 ([65536] float32) lost the connection to "
                                                   "a peer; no response from rank 1."));
}

TEST_CASE("gloo: junk on the job's port affects neither rendezvous nor operations") {
  const int port = free_port();
  const std::string junk = fmt::format(
      R"(bash -c 'address=/dev/tcp/127.0.0.1/{}; until (: < $address) 2> /dev/null; do sleep 0.05; done; )"
      R"(for i in {{1..40}}; do head -c $((i * 300)) /dev/urandom > $address && head -c 3 /dev/zero > $address && )"
      R"(printf "GET / HTTP/1.1\r\nHost: a\r\n\r\n" > $address && exec {{half_open}}<> $address && echo thrown; )"
      R"(sleep 0.1; done')",
      port);
  const auto ranks = run({rank_command(0, 2, port, "works"),
                          fmt::format("sh -c 'sleep 1; exec {}'", rank_command(1, 2, port, "works")), junk});
  for (size_t rank = 0; rank < 2; ++rank) {
    CAPTURE(ranks[rank].err);
    CHECK(ranks[rank].code == 0);
    CHECK(ranks[rank].out == "40 steps\n");
  }
  const auto thrown = std::count(ranks[2].out.begin(), ranks[2].out.end(), '\n');
  MESSAGE(thrown << " times junk of four kinds");
  CHECK(thrown >= 20);
}

TEST_CASE("gloo: empty addresses that a foreign process stores do not affect a job with an id") {
  const int port = free_port();
  const std::string id = "ACCELERATE_JOB_ID=ours";
  const auto ranks = run({rank_command(0, 2, port, "works", "127.0.0.1", id),
                          fmt::format("sh -c 'sleep 1; exec {}'", rank_command(1, 2, port, "works", "127.0.0.1", id)),
                          rank_command(0, 1, port, "strangers_keys")});
  for (size_t rank = 0; rank < 2; ++rank) {
    CAPTURE(ranks[rank].err);
    CHECK(ranks[rank].code == 0);
    CHECK(ranks[rank].out == "40 steps\n");
  }
  CHECK(ranks[2].out != "0 keys\n");
}

TEST_CASE("gloo: a failed rank is named at once") {
  for (const auto& transport : kGlooTransports) {
    CAPTURE(transport);
    const auto ranks = run_gloo("rank_1_dies", free_port(), "127.0.0.1", transport);
    CHECK(ranks[0].out == at_rank(0,
                                  "all_reduce: operation 2 ([4] float32) lost the connection to a peer; "
                                  "no response from rank 1."));
    CHECK(ranks[0].code == 3);
    CHECK(ranks[1].code == 7);
    check_quiet(ranks[0]);
  }
}

TEST_CASE("gloo in shared memory: messages from or to an exited rank fail, but its earlier messages arrive") {
  const auto out = [](const std::string& scenario) { return run_gloo(scenario)[0].out; };
  const std::string left = " cannot end: rank 1 has left the group";
  CHECK(out("message_of_ended_rank") == "the first message\n" + at_rank(0, "recv: a message ([2] float32)" + left));
  CHECK(out("message_to_ended_rank") == at_rank(0, "send: a message ([3000000] float32)" + left));
  CHECK(out("caught_while_received_from") == at_rank(0, "recv: a message ([4] float32)" + left));
}

TEST_CASE("gloo in shared memory: a message of another size is an error, also without debug") {
  CHECK(run_gloo("messages")[1].out ==
        at_rank(1, "recv: a message ([3] float32) cannot end: rank 0 sends 16 bytes, this rank expects 12"));
}

TEST_CASE("gloo: ranks that differ in ACCELERATE_GLOO_SHARED_MEMORY use the network, and other values are refused") {
  const int port = free_port();
  const auto on = [&](int rank, const std::string& value) {
    return rank_command(rank, 2, port, "works", "127.0.0.1",
                        "ACCELERATE_LOG_LEVEL=debug ACCELERATE_GLOO_SHARED_MEMORY=" + value);
  };
  for (const auto& pair : {std::pair("yes", "no"), std::pair("no", "yes"), std::pair("", "1")}) {
    const std::string transport = pair.second == std::string("1") ? "shared memory" : "the network";
    for (const auto& rank : run({on(0, pair.first), on(1, pair.second)})) {
      CAPTURE(rank.err);
      CHECK(rank.code == 0);
      CHECK(rank.out == "40 steps\n");
      CHECK(rank.err.find("connect: gloo exchanges tensors through " + transport + "\n") != std::string::npos);
    }
  }
  const auto refused = run({on(0, "maybe"), on(1, "maybe")})[0];
  CHECK(refused.out == fmt::format("environment: [rank 0 of 2, {}] connect: ACCELERATE_GLOO_SHARED_MEMORY is 'maybe', "
                                   "must be yes or no\n",
                                   accelerate::base::host_name()));
  CHECK(refused.code == 3);
}

TEST_CASE("gloo: the other ranks report that rank 0 failed") {
  const int port = free_port();
  const auto ranks = run_gloo("rank_0_dies", port);
  CHECK(ranks[1].out == at_rank(1, fmt::format("all_reduce: operation 2 ([4] float32) lost the connection to a peer; "
                                               "the job's store at 127.0.0.1:{}, which rank 0 keeps, is gone.",
                                               port)));
  CHECK(ranks[1].code == 3);
  check_quiet(ranks[1]);
}

TEST_CASE("gloo: the other ranks report a frozen rank 0 after the timeout") {
  const int port = free_port();
  const auto ranks = run_gloo("rank_0_freezes", port);
  CHECK(ranks[1].out == at_rank(1, fmt::format("all_reduce: waited 2 s in operation 2 ([4] float32); the job's store "
                                               "at 127.0.0.1:{}, which rank 0 keeps, does not answer.",
                                               port)));
  CHECK(ranks[1].code == 3);
  check_quiet(ranks[1]);
}

TEST_CASE("gloo: a name server without a response is reported after the timeout") {
  const auto ranks = run({rank_command(1, 2, free_port(), "connect", "unanswered.example")});
  CHECK(ranks[0].out ==
        fmt::format("environment: [rank 1 of 2, {}] connect: MASTER_ADDR is 'unanswered.example', which cannot be "
                    "resolved: no answer within 2.0 s\n",
                    accelerate::base::host_name()));
  CHECK(ranks[0].code == 3);
}

TEST_CASE("gloo: an error has the ranks that did not join as a field") {
  const auto missing = [](const std::vector<std::string>& commands) {
    const auto out = run(commands)[0].out;
    CAPTURE(out);
    CHECK(out.find("\nmissing: 1\n") != std::string::npos);
    CHECK(out.find("missing: \n") == std::string::npos);
  };
  const int port = free_port();
  const auto rank_0 = [&](const std::string& scenario, int on) {
    return rank_command(0, 2, on, scenario, "127.0.0.1", "FAULT_FIELDS=1");
  };
  missing({rank_0("late", port), rank_command(1, 2, port, "late")});
  missing({rank_0("connect", free_port())});
  const int other = free_port();
  missing({rank_0("connect", other), rank_command(1, 2, other, "meets_only")});
}

TEST_CASE("gloo: a rank that misses the rendezvous is named") {
  const auto ranks = run({rank_command(0, 2, free_port(), "connect")});
  CHECK(ranks[0].out == at_rank(0, "connect: waited 2 s for rank 1, which did not join"));
  CHECK(ranks[0].code == 3);
  check_quiet(ranks[0]);
}

TEST_CASE("gloo: all ranks name the missing rank although rank 0 aborts first") {
  const int port = free_port();
  const auto ranks = run({rank_command(0, 3, port, "connect"),
                          fmt::format("sh -c 'sleep 0.3; exec {}'", rank_command(1, 3, port, "connect"))});
  for (const int rank : {0, 1}) {
    CHECK(ranks[static_cast<size_t>(rank)].out ==
          fmt::format("peer: [rank {} of 3, {}] connect: waited 2 s for rank 2, which did not join\n", rank,
                      accelerate::base::host_name()));
  }
}

TEST_CASE("gloo: the address of a missing rank 0 is named") {
  const int port = free_port();
  const auto ranks = run({rank_command(1, 2, port, "connect")});
  CHECK(ranks[0].out == at_rank(1, fmt::format("connect: waited 2 s for rank 0 at 127.0.0.1:{}, it did not join; "
                                               "start it, or check MASTER_ADDR and MASTER_PORT",
                                               port)));
  check_quiet(ranks[0]);
}

TEST_CASE("gloo: a second job on the same port fails with an error") {
  const Listener other_job;
  const auto ranks =
      run({rank_command(0, 2, other_job.port(), "connect"), rank_command(1, 2, other_job.port(), "connect")});
  CHECK(ranks[0].out == fmt::format("environment: [rank 0 of 2, {}] connect: 127.0.0.1:{} is in use, perhaps by "
                                    "another job; give each job its own port (MASTER_PORT, --main_process_port)\n",
                                    accelerate::base::host_name(), other_job.port()));
  check_quiet(ranks[0]);
  check_quiet(ranks[1]);
}

TEST_CASE("gloo: another machine's address, an unresolvable address and a missing port are refused") {
  const auto error = [](const std::string& text) {
    return fmt::format("environment: [rank 0 of 2, {}] connect: {}\n", accelerate::base::host_name(), text);
  };
  const auto ranks =
      run({rank_command(0, 2, free_port(), "connect", "203.0.113.7"),
           rank_command(0, 2, free_port(), "connect", "no.such.host.invalid"), rank_command(0, 2, 0, "connect")});
  CHECK(ranks[0].out == error("MASTER_ADDR is 203.0.113.7, which is not an address of this machine; it must name the "
                              "machine of rank 0"));
  CHECK(ranks[1].out.find("connect: MASTER_ADDR is 'no.such.host.invalid', which cannot be resolved: ") !=
        std::string::npos);
  CHECK(ranks[2].out == error("MASTER_PORT is 0, must be a free port of rank 0's machine, the same on all ranks"));
}

TEST_CASE("gloo: a missing interface is reported with the existing ones") {
  const std::string text = fmt::format(
      "environment: [rank 0 of 2, {}] connect: GLOO_SOCKET_IFNAME is 'nosuch0', and 'nosuch0' is not a network "
      "interface of this machine that is up and has an address; there are: lo",
      accelerate::base::host_name());
  const int port = free_port();
  const auto on = [&](int rank, const std::string& name) {
    return rank_command(rank, 2, port, "connect", "127.0.0.1", "GLOO_SOCKET_IFNAME=" + name);
  };
  auto ranks = run({on(0, "nosuch0"), on(1, "nosuch0")});
  CHECK(ranks[0].out.starts_with(text));
  CHECK(ranks[0].code == 3);
  check_quiet(ranks[0]);
  ranks = run({on(0, "lo"), on(1, "lo")});
  CHECK(ranks[0].out.empty());
  CHECK(ranks[0].code == 0);
}

TEST_CASE("gloo: a rank that joins the rendezvous but not gloo is named after the timeout") {
  const int port = free_port();
  const auto ranks = run({rank_command(0, 2, port, "connect"), rank_command(1, 2, port, "meets_only")});
  CHECK(ranks[0].out == at_rank(0, "connect: gloo could not connect the 2 ranks within 2 s; rank 1 did not join"));
  check_quiet(ranks[0]);
}

TEST_CASE("gloo: 3 ranks connect and destroy 300 groups without an operation") {
  const int port = free_port();
  const auto command = [&](int rank) { return rank_command(rank, 3, port, "connects_and_drops"); };
  for (const auto& rank : run({command(0), command(1), command(2)})) {
    CHECK(rank.out == "300 groups\n");
    CHECK(rank.code == 0);
    check_quiet(rank);
  }
}

TEST_CASE("gloo: a rank that dies while gloo connects the ranks is named") {
  const int port = free_port();
  const auto command = [&](int rank) { return rank_command(rank, 3, port, "last_dies_connecting"); };
  const auto ranks = run({command(0), command(1), command(2)});
  const auto text = [](int rank) {
    return fmt::format(
        "peer: [rank {} of 3, {}] connect: gloo could not connect the 3 ranks within 2 s; a rank did not join or "
        "cannot be reached; ",
        rank, accelerate::base::host_name());
  };
  CHECK(ranks[0].out == text(0) + "no response from rank 2.\n");
  CHECK(ranks[1].out.starts_with(text(1)));
  const bool store_is_gone =
      ranks[1].out.find(", which rank 0 keeps, is gone.\n") != std::string::npos;  // rank 0 ended
  CHECK((store_is_gone || ranks[1].out == text(1) + "no response from rank 2.\n"));
  for (const size_t rank : {size_t{0}, size_t{1}}) CHECK(ranks[rank].code == 3);
}

TEST_CASE("gloo: a store that closes while gloo connects is not reported as a timeout") {
  const int port = free_port();
  const auto ranks = run({rank_command(0, 2, port, "meets_and_dies"), rank_command(1, 2, port, "slow_connect")});
  CAPTURE(ranks[1].out);
  CHECK(ranks[1].out.starts_with(
      fmt::format("peer: [rank 1 of 2, {}] connect: gloo could not connect the 2 ranks, it failed after ",
                  accelerate::base::host_name())));
  CHECK(ranks[1].out.find("[enforce fail") == std::string::npos);
  CHECK(ranks[1].code == 3);
  check_quiet(ranks[1]);
}

TEST_CASE("gloo: ranks connect over IPv6") {
  for (const auto& rank : run_gloo("connect", free_port(), "::1")) {
    CAPTURE(rank.out);
    CHECK(rank.code == 0);
  }
}

TEST_CASE("gloo: different trailing dimensions are reported on every rank") {
  const auto ranks = run_gloo("ragged");
  CHECK(ranks[0].out == at_rank(0,
                                "all_gather: this rank sends [64, 10] float32, rank 1 sends [64, 12] float32; "
                                "only the first dimension may differ."));
  CHECK(ranks[1].out == at_rank(1,
                                "all_gather: this rank sends [64, 12] float32, rank 0 sends [64, 10] float32; "
                                "only the first dimension may differ."));
}

TEST_CASE("gloo: different shapes, dtypes, reductions and roots are reported on every rank at once") {
  const auto both = [](const std::string& scenario, const std::string& text, const std::string& rank_0,
                       const std::string& rank_1) {
    for (const auto& transport : kGlooTransports) {
      const auto ranks = run_gloo(scenario, free_port(), "127.0.0.1", transport);
      CAPTURE(scenario);
      CAPTURE(transport);
      CHECK(ranks[0].out == at_rank(0, fmt::format(fmt::runtime(text), rank_0, 1, rank_1)));
      CHECK(ranks[1].out == at_rank(1, fmt::format(fmt::runtime(text), rank_1, 0, rank_0)));
    }
  };
  const std::string sends = "this rank sends {}, rank {} sends {}; they must be equal.";
  both("shapes", "all_reduce: " + sends, "[4] float32", "[5] float32");
  both("dtypes", "all_reduce: " + sends, "[4] float32", "[4] int32");
  both("shapes_large", "all_reduce: " + sends, "[3000000] float32", "[3000001] float32");
  both("dtypes_large", "all_reduce: " + sends, "[3000000] float32", "[3000000] int32");
  both("shapes_broadcast", "broadcast: " + sends, "[5] float32", "[4] float32");
  both("shapes_reduce", "reduce: " + sends, "[4] float32", "[5] float32");
  both("row_shapes", "reduce_scatter: " + sends, "[4] float32", "[6] float32");
  both("part_shapes", "all_gather: " + sends, "[2] float32", "[3] float32");
  both("reductions", "all_reduce: this rank's reduction is {}, rank {}'s is {}; they must be equal.", "sum", "max");
  both("roots", "broadcast: this rank's root is {}, rank {}'s is {}; they must be equal.", "0", "1");
}

TEST_CASE("gloo on the network: a message that is larger than expected ends the process with our text and the remedy") {
  const auto receiver = run_gloo("messages", free_port(), "127.0.0.1", kGlooTransports.at(1))[1];
  CHECK(receiver.code == 1);
  CHECK(receiver.out.empty());
  CHECK(receiver.err ==
        fmt::format("[rank 1 of 2, {}] gloo: the ranks give tensors of different sizes to one operation, and gloo ends "
                    "the process for that; with ACCELERATE_DEBUG_MODE=1 (accelerate_launch --debug) every rank reports "
                    "its call\n",
                    accelerate::base::host_name()));
}

TEST_CASE("gloo, debug: different shapes, dtypes, reductions, roots, operations and messages are reported") {
  auto ranks = run_gloo("debug_shapes");
  CHECK(ranks[0].out ==
        at_rank(0, "all_reduce: this rank sends [4] float32, rank 1 sends [5] float32; they must be equal."));
  CHECK(ranks[1].out ==
        at_rank(1, "all_reduce: this rank sends [5] float32, rank 0 sends [4] float32; they must be equal."));
  ranks = run_gloo("debug_dtypes");
  CHECK(ranks[0].out ==
        at_rank(0, "all_reduce: this rank sends [4] float32, rank 1 sends [4] int32; they must be equal."));
  ranks = run_gloo("debug_reductions");
  CHECK(ranks[0].out == at_rank(0, "all_reduce: this rank's reduction is sum, rank 1's is max; they must be equal."));
  ranks = run_gloo("debug_roots");
  CHECK(ranks[0].out == at_rank(0, "broadcast: this rank's root is 0, rank 1's is 1; they must be equal."));
  ranks = run_gloo("debug_operations");
  CHECK(ranks[0].out == at_rank(0,
                                "barrier: operation 2 of this rank is barrier, rank 1's operation 2 is broadcast; all "
                                "ranks must call the same operations in the same order."));
  ranks = run_gloo("debug_extra");
  CHECK(ranks[0].out == at_rank(0, kBarrierBesideExtra));
  CHECK(ranks[1].out == at_rank(1, kExtraBesideBarrier));
  ranks = run_gloo("debug_extra_last");
  CHECK(ranks[0].out == at_rank(0, kStepBesideExtra));
  ranks = run_gloo("debug_messages");
  CHECK(ranks[1].out ==
        at_rank(1, "recv: this rank expects [3] float32, rank 0 sends [4] float32; they must be equal."));
}
