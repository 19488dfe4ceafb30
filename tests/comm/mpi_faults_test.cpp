// SPDX-License-Identifier: Apache-2.0
// Real processes over MPI that die, do not join or disagree: the exact error texts of their peers.
#include "tests/comm/faults.hpp"

using namespace faults;  // NOLINT

namespace {

std::vector<Ended> run_mpi(const std::string& scenario, int ranks = 2) {
  return run({fmt::format("{} --cpu --num_processes {} --backend mpi {} {}", ACCELERATE_LAUNCH, ranks, FAULT_RANKS,
                          scenario)});
}

/// Each of two ranks reports its text; the launcher may stop one of them before that.
void check_one_rank_reports(const std::string& scenario, const std::string& of_0, const std::string& of_1) {
  const auto out = run_mpi(scenario)[0].out;
  CAPTURE(out);
  CHECK((out.find(at_rank(0, of_0)) != std::string::npos || out.find(at_rank(1, of_1)) != std::string::npos));
}

}  // namespace

TEST_CASE("mpi: a missing rank breaks the group after the timeout, and the program keeps its exit code") {
  for (const auto& [scenario, elements] : {std::pair("late", 4), std::pair("late_large", 3'000'000)}) {
    const auto job = run_mpi(scenario);
    CAPTURE(job[0].out);
    const auto reason = fmt::format("waited 2 s in operation 1 ([{}] float32); rank 1 did not join.", elements);
    CHECK(job[0].out.find(at_rank(0, "all_reduce: " + reason)) != std::string::npos);
    CHECK(job[0].out.find(at_rank(0, "barrier: this group is broken since operation 1 (all_reduce): " + reason)) !=
          std::string::npos);
    CHECK(job[0].code == 3);
    CHECK(job[0].out.find("slept to the end") == std::string::npos);
  }
}

TEST_CASE("mpi: errors of a group with a name for its ranks contain the name") {
  const auto out = run_mpi("late_named")[0].out;
  CAPTURE(out);
  const std::string reason =
      "waited 2 s in operation 1 ([4] float32) over the 2 tensor parallel ranks; rank 1 did not join.";
  CHECK(
      out.find(at_rank(0, "all_reduce: " + reason) +
               at_rank(0, "barrier: this group of 2 tensor parallel ranks is broken since operation 1 (all_reduce): " +
                              reason)) != std::string::npos);
}

TEST_CASE("mpi: every waiting operation names the missing rank") {
  const auto output_of = [](const std::string& scenario) { return run_mpi(scenario)[0].out; };
  const auto contains = [](const std::string& out, const std::string& text) {
    CAPTURE(out);
    CHECK(out.find(at_rank(0, text)) != std::string::npos);
  };
  check_all_name_rank_1(output_of("late_to_all"), "rank 1 did not join.\n");
  contains(output_of("late_barrier"), "barrier: waited 2 s in operation 1 (no tensor); rank 1 did not join.");
  contains(output_of("late_second"), "all_reduce: waited 0.5 s in operation 2 ([3] float32); rank 1 did not join.");
  contains(output_of("late_message"), "recv: waited 2 s in a message ([2] float32); rank 1 did not join.");
  const auto out = output_of("stops");
  CAPTURE(out);
  CHECK(out.find("all_reduce: waited 2 s in operation 1 ([100000000] float32); ") != std::string::npos);
  const bool in_the_middle = out.find("no response from rank 1.") != std::string::npos;
  CHECK((in_the_middle || out.find("rank 1 did not join.") != std::string::npos));
}

TEST_CASE("mpi: a failed operation's error fails the pending operations too") {
  const auto out = run_mpi("late_and_next")[0].out;
  CAPTURE(out);
  const std::string reason = "waited 0.5 s in operation 1 ([2] float32); rank 1 did not join.";
  CHECK(out.find(at_rank(0, "all_reduce: " + reason) +
                 at_rank(0, "all_reduce: this group is broken since operation 1 (all_reduce): " + reason)) !=
        std::string::npos);
}

TEST_CASE("mpi: nine ranks name the missing rank, also in MPI's own sums") {
  const auto check_any_reports = [](const std::string& scenario, const std::string& text) {
    const auto job = run_mpi(scenario, 9);
    CAPTURE(job[0].out);
    CAPTURE(job[0].err);
    CHECK(job[0].code == 3);
    bool by_any = false;
    for (int rank = 0; rank < 9; ++rank) {
      const auto line = fmt::format("peer: [rank {} of 9, {}] {}\n", rank, accelerate::base::host_name(), text);
      by_any = by_any || job[0].out.find(line) != std::string::npos;
    }
    CHECK(by_any);
  };
  check_any_reports("late_of_many", "all_reduce: waited 2 s in operation 2 ([2000000] float32); rank 1 did not join.");
  check_any_reports("stops_of_many",
                    "all_reduce: waited 2 s in operation 2 ([20000000] float32); no response from rank 1.");
}

TEST_CASE("mpi: different calls are reported on every rank, without debug mode") {
  const auto check = check_one_rank_reports;
  const auto both = [&](const std::string& scenario, const std::string& head, const std::string& zero,
                        const std::string& one, const std::string& middle, const std::string& end) {
    check(scenario, fmt::format("{}{}{} {}{}", head, zero, fmt::format(fmt::runtime(middle), 1), one, end),
          fmt::format("{}{}{} {}{}", head, one, fmt::format(fmt::runtime(middle), 0), zero, end));
  };
  both("shapes", "all_reduce: this rank sends ", "[4] float32", "[5] float32", ", rank {} sends",
       "; they must be equal.");
  both("dtypes", "all_reduce: this rank sends ", "[4] float32", "[4] int32", ", rank {} sends",
       "; they must be equal.");
  // Too large to be sent with the comparison.
  both("shapes_large", "all_reduce: this rank sends ", "[3000000] float32", "[3000001] float32", ", rank {} sends",
       "; they must be equal.");
  both("dtypes_large", "all_reduce: this rank sends ", "[3000000] float32", "[3000000] int32", ", rank {} sends",
       "; they must be equal.");
  both("reductions", "all_reduce: this rank's reduction is ", "sum", "max", ", rank {}'s is", "; they must be equal.");
  both("gathers", "all_gather: this rank calls ", "all_gather", "all_gather_async", ", rank {} calls",
       "; all ranks must call the same.");
  both("roots", "broadcast: this rank's root is ", "0", "1", ", rank {}'s is", "; they must be equal.");
  check("operations",
        "barrier: operation 2 of this rank is barrier, rank 1's operation 2 is broadcast; all ranks must call the same "
        "operations in the same order.",
        "broadcast: operation 2 of this rank is broadcast, rank 0's operation 2 is barrier; all ranks must call the "
        "same operations in the same order.");
  const auto out = run_mpi("messages")[0].out;
  CAPTURE(out);
  CHECK(out.find(at_rank(1,
                         "recv: a message ([3] float32) cannot end: rank 0 sends more than the 12 bytes that this rank "
                         "expects")) != std::string::npos);
}

TEST_CASE("mpi, debug: an operation of one rank between two steps is reported at once") {
  check_one_rank_reports("debug_extra", kBarrierBesideExtra, kExtraBesideBarrier);
  check_one_rank_reports("debug_extra_last", kStepBesideExtra, kExtraBesideStep);
}

TEST_CASE("mpi: the launcher names a rank that misses MPI_Init, after the timeout") {
  const auto job = run_mpi("stays_away");
  CHECK(job[0].out == at_rank(0,
                              "connect: waited 2 s for the other ranks in MPI's start; one did not join, or cannot be "
                              "reached"));
  CAPTURE(job[0].err);
  CHECK(job[0].err.find(") ended first, exit code 3 in MPI_Init, which worker 1 did not reach; the others were "
                        "stopped.") != std::string::npos);
  CHECK(job[0].code == 3);
}

TEST_CASE("mpi: a handled failure does not stop the other ranks") {
  const std::string left =
      fmt::format("[rank 1 of 2, {}] MPI_Finalize: waited 2 s for the other ranks; left without them\n",
                  accelerate::base::host_name());
  for (const auto& [scenario, message] : {std::pair("caught", std::string()), std::pair("handled", left)}) {
    const auto job = run_mpi(scenario);
    CAPTURE(job[0].out);
    CAPTURE(job[0].err);
    CHECK(job[0].out.find("rank 0 saved\n") != std::string::npos);
    CHECK(job[0].out.find("rank 1 saved\n") != std::string::npos);
    CHECK(job[0].err == message);
    CHECK(job[0].code == 0);
  }
}

TEST_CASE("mpi: a wait for a rank that left the group with an exception fails at once") {
  for (const auto& [scenario, elements] :
       {std::pair("caught_while_waited_for", 4), std::pair("caught_while_waited_for_large", 3'000'000)}) {
    const auto job = run_mpi(scenario);
    CHECK(
        job[0].out ==
        at_rank(0, fmt::format("all_reduce: operation 2 ([{}] float32) cannot end: rank 1 aborted after its own error",
                               elements)));
  }
  CHECK(run_mpi("caught_and_again")[0].out == "sum 2\nsum 2\n");
  const auto out = run_mpi("refused_while_waited_for")[0].out;
  CAPTURE(out);
  CHECK(out.find(at_rank(0, "all_reduce: operation 1 ([4] float32) cannot end: rank 1 aborted after its own error")) !=
        std::string::npos);
}

TEST_CASE("mpi: an operation that needs an exited rank fails") {
  const auto job = run_mpi("operation_of_ended_rank");
  CHECK(job[0].out == at_rank(0, "all_reduce: operation 1 ([4] float32) cannot end: rank 1 has ended"));
  CHECK(job[0].code == 3);
}

TEST_CASE("mpi: messages from or to an exited rank fail, but its earlier messages arrive") {
  const auto out = [](const std::string& scenario) { return run_mpi(scenario)[0].out; };
  CHECK(out("message_of_ended_rank") ==
        "the first message\n" + at_rank(0, "recv: a message ([2] float32) cannot end: rank 1 has ended"));
  CHECK(out("message_to_ended_rank") == at_rank(0, "send: a message ([3000000] float32) cannot end: rank 1 has ended"));
  CHECK(out("caught_while_received_from") ==
        at_rank(0, "recv: a message ([4] float32) cannot end: rank 1 aborted after its own error"));
}

TEST_CASE("mpi: the launcher names a failed rank and stops the others") {
  for (const int rank : {0, 1}) {
    const auto job = run_mpi(fmt::format("rank_{}_dies", rank));
    CAPTURE(job[0].err);
    CHECK(job[0].err.find(fmt::format("accelerate_launch: worker {} (", rank)) != std::string::npos);
    CHECK(job[0].err.find(") ended first, exit code 7; the others were stopped.") != std::string::npos);
    CHECK(job[0].code == 7);
  }
}

TEST_CASE("mpi: if rank 0 is stopped, the others fail after the timeout, and the launcher names the stopped rank") {
  const auto job = run_mpi("rank_0_freezes");
  CHECK(job[0].out == at_rank(1, "all_reduce: waited 2 s in operation 2 ([4] float32); rank 0 did not join."));
  CAPTURE(job[0].err);
  CHECK(job[0].err.find(") ended first, exit code 3, while worker 0 was suspended by a signal; the others were "
                        "stopped.") != std::string::npos);
  CHECK(job[0].code == 3);
}

TEST_CASE("mpi: different trailing dimensions are reported on every rank, and different shapes in debug mode") {
  auto job = run_mpi("ragged");
  for (const int rank : {0, 1}) {
    CAPTURE(job[0].out);
    const std::string mine = rank == 1 ? "12" : "10";
    const std::string theirs = rank == 1 ? "10" : "12";
    CHECK(job[0].out.find(fmt::format("all_gather: this rank sends [64, {}] float32, rank {} sends [64, {}] float32; "
                                      "only the first dimension may differ.",
                                      mine, 1 - rank, theirs)) != std::string::npos);
  }
  job = run_mpi("debug_shapes");
  CHECK(job[0].out.find("all_reduce: this rank sends [4] float32, rank 1 sends [5] float32; they must be equal.") !=
        std::string::npos);
}

TEST_CASE("mpi: an MPI without thread support, and a finalized MPI, are refused") {
  const auto rank = [](const std::string& scenario) {
    return fmt::format("env RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 ACCELERATE_BACKEND=mpi {} {}",
                       FAULT_RANKS, scenario);
  };
  const auto error = [](const std::string& text) {
    return fmt::format("environment: [rank 0 of 2, {}] connect: {}\n", accelerate::base::host_name(), text);
  };
  const auto ranks = run({rank("mpi_gives_less"), rank("mpi_without_threads"), rank("mpi_finalized")});
  CHECK(ranks[0].out ==
        error("this MPI provides thread level 2, must provide MPI_THREAD_MULTIPLE (3); use another MPI, or "
              "backend gloo"));
  CHECK(ranks[1].out == error("the program initialised MPI at thread level 0, must be MPI_THREAD_MULTIPLE (3); call "
                              "MPI_Init_thread with it, or let Accelerate initialize MPI"));
  CHECK(ranks[2].out == error("MPI was finalized already in this process"));
}

TEST_CASE("mpi: a rank and world size that differ from MPI's are refused with both") {
  const auto ranks = run({fmt::format(
      "env RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 ACCELERATE_BACKEND=mpi {} slow_connect", FAULT_RANKS)});
  CHECK(ranks[0].out ==
        fmt::format("environment: [rank 0 of 2, {}] connect: MPI has rank 0 of 1, the environment has rank 0 of 2; "
                    "start the program with mpirun or accelerate_launch, or use backend gloo\n",
                    accelerate::base::host_name()));
  CHECK(ranks[0].code == 3);
}
