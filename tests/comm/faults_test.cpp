// SPDX-License-Identifier: Apache-2.0
// Refusals of the operating system or the machine, for ranks that are threads or processes.
#include "tests/comm/faults.hpp"

using namespace faults;  // NOLINT

TEST_CASE("run_threads: if the system cannot create a thread, the running ranks end with an error") {
  const auto ranks = run({fmt::format("{} threads", FAULT_RANKS)});
  CHECK(ranks[0].out ==
        "environment: run_threads: 3 of 5 threads could be started, then the system refused: Resource temporarily "
        "unavailable; run fewer ranks, or raise the limits on threads and memory (ulimit -u, ulimit -v)\n");
  CHECK(ranks[0].code == 3);
}

TEST_CASE("ACCELERATE_BACKEND=nccl without a GPU: one process runs, several ranks get an error") {
  const std::string shell = "ACCELERATE_BACKEND=nccl ACCELERATE_USE_CPU=1";
  const auto ranks = run(
      {fmt::format("env {} {} start", shell, FAULT_RANKS), rank_command(1, 2, free_port(), "start", "127.0.0.1", shell),
       fmt::format("env {} {} --cpu --num_processes 2 {} start", shell, ACCELERATE_LAUNCH, FAULT_RANKS)});
  const std::string text =
      "connect: backend (ACCELERATE_BACKEND) is 'nccl', which needs a GPU, and this rank computes on the CPU; use mpi "
      "or gloo, or unset it\n";
  CHECK(ranks[0].out.empty());
  CHECK(ranks[0].code == 0);
  CHECK(ranks[1].out == fmt::format("environment: [rank 1 of 2, {}] {}", accelerate::base::host_name(), text));
  CHECK(ranks[1].code == 3);
  CHECK(ranks[2].out.find(text) != std::string::npos);
  CHECK(ranks[2].code == 3);
}
