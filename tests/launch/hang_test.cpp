// SPDX-License-Identifier: Apache-2.0
// Ranks that hang.
#include <doctest/doctest.h>

#include <sstream>
#include <string>

#include "launch/run/port.hpp"
#include "tests/launch/run.hpp"
#include "tests/launch/scratch.hpp"

using testing::launch;

TEST_CASE("if no rank makes progress, the missing rank and the operation of the others are named") {
  // A debugger is slow, so it runs only once.
  accelerate::env::Variables variables;
  for (const std::string backend : {TEST_BACKENDS}) {
    const auto ran = launch({"--cpu", "--num_processes", "2", "--backend", backend, "--hang_timeout", "2",
                             "--grace_time", "1", TEST_BINARY_DIR "/bin/fault_ranks", "sleeps"},
                            variables);
    CAPTURE(backend);
    CAPTURE(ran.err);
    CHECK(ran.code == 124);
    CHECK(ran.err.find("accelerate_launch: no rank has moved for 2 s; worker 1 is missing, worker 0 waits in "
                       "all_reduce, operation 2 of ") != std::string::npos);
    CHECK(ran.err.find("([4] float32) (") != std::string::npos);
    CHECK(ran.err.find("); all were stopped. ") != std::string::npos);
    // Missing ranks are examined first; a debugger's output and speed are not tested.
    CHECK(ran.err.find("accelerate_launch: stacks of worker 1:\n") < ran.err.find("stacks of worker 0:"));
    if (!variables.empty())
      CHECK(ran.err.find("no stacks: neither eu-stack nor gdb is installed\n") != std::string::npos);
    variables["PATH"] = "/no debugger here";
  }
}

#if TEST_WITH_GLOO
TEST_CASE("each of several machines names the missing rank of the whole job") {
  const auto port = std::to_string(accelerate::launch::ReservedPort(0).number());
  const auto machine = [&](const std::string& rank) {
    return testing::launcher({"--backend", "gloo", "--num_machines", "2", "--machine_rank", rank, "--main_process_ip",
                              "127.0.0.1", "--main_process_port", port, "--num_processes", "2", "--hang_timeout", "2",
                              "--grace_time", "1", TEST_BINARY_DIR "/bin/fault_ranks", "sleeps"});
  };
  const accelerate::env::Variables no_debugger{{"PATH", "/no debugger here"}};
  testing::Child zero(machine("0"), no_debugger);
  testing::Child one(machine("1"), no_debugger);
  const auto first = zero.wait();
  const auto second = one.wait();
  for (const auto& ran : {first, second}) {
    CAPTURE(ran.err);
    CHECK(ran.code == 124);
    CHECK(ran.err.find("accelerate_launch: no rank has moved for 2 s; worker 1 is missing, worker 0 waits in "
                       "all_reduce, operation 2 of world ([4] float32) (") != std::string::npos);
  }
  // Each launcher reports its own rank.
  CHECK(first.err.find("accelerate_launch: worker 0 (pid ") == 0);
  CHECK(first.err.find("accelerate_launch: stacks of worker 0:\n") != std::string::npos);
  CHECK(first.err.find("worker 1 (pid ") == std::string::npos);
  CHECK(first.err.ends_with("); the ranks of this machine were stopped\n"));
  CHECK(second.err.find("accelerate_launch: worker 1 (pid ") == 0);
  CHECK(second.err.find("); all were stopped. ") != std::string::npos);
}

TEST_CASE("a rank that waits for another machine with progress is not stalled") {
  const auto port = std::to_string(accelerate::launch::ReservedPort(0).number());
  const auto machine = [&](const std::string& rank) {
    return testing::launcher({"--backend", "gloo", "--num_machines", "2", "--machine_rank", rank, "--main_process_ip",
                              "127.0.0.1", "--main_process_port", port, "--num_processes", "2", "--hang_timeout", "5",
                              TEST_BINARY_DIR "/bin/fault_ranks", "gets_on_alone"});
  };
  testing::Child zero(machine("0"));
  testing::Child one(machine("1"));
  for (auto* each : {&zero, &one}) {
    const auto ran = each->wait();
    CHECK(ran.code == 0);
    CHECK(ran.err == "");
  }
}
#endif

TEST_CASE("slow ranks, and programs without the library, do not count as stalled") {
  const auto ran = launch({"--num_processes", "2", "--backend", "gloo", "--hang_timeout", "0.2", "sleep", "1"});
  CHECK(ran.code == 0);
  CHECK(ran.err == "");
}

TEST_CASE("only the user can read a job's files") {
  const testing::Scratch scratch;
  auto variables = scratch.variables();
  const auto ran = launch({"--num_processes", "2", "--backend", "gloo", "--hang_timeout", "60", "sh", "-c",
                           "[ $RANK = 1 ] || exit 0; sleep 1; find \"$TMPDIR\" -mindepth 1 -printf '%y%m\\n' | sort"},
                          variables);
  CHECK(ran.code == 0);
  CHECK(ran.out.find("f600\nf600\n") != std::string::npos);  // the heartbeats
  for (std::istringstream lines(ran.out); std::getline(lines, variables["line"]);) {
    const auto& line = variables["line"];
    CHECK((line == "d700" || line == "f600"));
  }
}
