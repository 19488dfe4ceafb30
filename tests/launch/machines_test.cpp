// SPDX-License-Identifier: Apache-2.0
// One launcher per machine, all on this machine.
#include <doctest/doctest.h>

#include <csignal>
#include <list>
#include <string>
#include <vector>

#include "accelerate/base/error.hpp"
#include "launch/run/port.hpp"
#include "tests/launch/run.hpp"

using testing::Child;
using testing::launcher;
using testing::Ran;
using Words = std::vector<std::string>;

namespace {

std::string free_port() { return std::to_string(accelerate::launch::ReservedPort(0).number()); }

Words machine(int rank, int machines, const std::string& port, const std::string& script, const Words& more = {}) {
  Words words{"--num_machines",      std::to_string(machines),
              "--machine_rank",      std::to_string(rank),
              "--main_process_ip",   "127.0.0.1",
              "--main_process_port", port};
  words.insert(words.end(), more.begin(), more.end());
  if (more.empty() || !more.front().starts_with("--num_processes")) {
    words.push_back("--num_processes=" + std::to_string(2 * machines));
  }
  words.insert(words.end(), {"sh", "-c", script});
  return launcher(words);
}

/// Results of the launchers of several machines.
std::vector<Ran> run_all(int machines, const std::string& script) {
  const std::string port = free_port();
  std::list<Child> children;
  for (int rank = machines - 1; rank >= 0; --rank) children.emplace_back(machine(rank, machines, port, script));
  std::vector<Ran> ran(static_cast<size_t>(machines));
  for (int rank = machines - 1; rank >= 0; --rank) {
    ran[static_cast<size_t>(rank)] = children.front().wait();
    children.pop_front();
  }
  return ran;
}

}  // namespace

TEST_CASE("ranks of two machines form one job with consecutive ranks, one address, one port and one id") {
  const auto ran = run_all(2,
                           "sleep 0.$((LOCAL_RANK * 3)); echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE; "
                           "echo $MASTER_ADDR $MASTER_PORT $ACCELERATE_JOB_ID >&2");
  CHECK(ran[0].code == 0);
  CHECK(ran[1].code == 0);
  CHECK(ran[0].out == "0 4 0 2\n1 4 1 2\n");
  CHECK(ran[1].out == "2 4 0 2\n3 4 1 2\n");
  CHECK(ran[0].err.starts_with("127.0.0.1 "));
  CHECK(ran[0].err == ran[1].err);
}

TEST_CASE("a failed rank stops the ranks of all machines, and all launchers exit with its code") {
  const auto ran = run_all(3, "[ $RANK = 3 ] && exit 7; exec sleep 300");
  for (const auto& each : ran) CHECK(each.code == 7);
  CHECK(ran[1].err.find("accelerate_launch: worker 3 (") != std::string::npos);
  for (const int other : {0, 2}) {
    CAPTURE(ran[static_cast<size_t>(other)].err);
    CHECK(ran[static_cast<size_t>(other)].err.find("accelerate_launch: machine 1 (") != std::string::npos);
    CHECK(ran[static_cast<size_t>(other)].err.find("worker 3, exit code 3") == std::string::npos);
    CHECK(ran[static_cast<size_t>(other)].err.find(
              "): worker 3, exit code 7; the ranks of this machine were stopped\n") != std::string::npos);
  }
}

TEST_CASE("a machine with exited ranks waits for the other machines and gets their result") {
  const auto ran = run_all(2, "[ $RANK = 2 ] && sleep 1 && exit 9; exit 0");
  CHECK(ran[0].code == 9);
  CHECK(ran[1].code == 9);
  CHECK(ran[0].err.ends_with("): worker 2, exit code 9\n"));  // nothing was stopped
}

TEST_CASE("a machine that cannot start its ranks reports it to the others, and all exit with its code") {
  const std::string port = free_port();
  auto words = machine(1, 2, port, "");
  words.resize(words.size() - 3);
  words.emplace_back("no_such_program");
  Child zero(machine(0, 2, port, "exec sleep 300"));
  Child one(words);
  const auto ran = zero.wait();
  CAPTURE(ran.err);
  CHECK(ran.code == 127);
  CHECK(ran.err.find("accelerate_launch: machine 1 (" + accelerate::base::host_name() +
                     "): no_such_program not found in PATH") != std::string::npos);
  const auto other = one.wait();
  CHECK(other.code == 127);
  CHECK(other.err == "accelerate_launch: no_such_program not found in PATH\n");
}

TEST_CASE("machines with ranks that end with the resume code wait for one another and exit with it") {
  const std::string port = free_port();
  const std::string script = "[ $RANK = 0 ] || sleep 1; echo saved; exit 75";
  Child zero(machine(0, 2, port, script, {"--num_processes=2", "--resume_code=75"}));
  Child one(machine(1, 2, port, script, {"--num_processes=2", "--resume_code=75"}));
  for (auto* each : {&zero, &one}) {
    const auto ran = each->wait();
    CHECK(ran.code == 75);
    CHECK(ran.out == "saved\n");
    CHECK(ran.err == "");
  }
}

TEST_CASE("all machines exit with the resume code if the ranks of one do") {
  for (const std::string asking : {"0", "1"}) {
    CAPTURE(asking);
    const std::string port = free_port();
    const std::string script = "[ $RANK = " + asking + " ] && exit 75; sleep 0.5; exit 0";
    Child zero(machine(0, 2, port, script, {"--num_processes=2", "--resume_code=75"}));
    Child one(machine(1, 2, port, script, {"--num_processes=2", "--resume_code=75"}));
    CHECK(zero.wait().code == 75);
    CHECK(one.wait().code == 75);
  }
}

TEST_CASE("if a launcher is killed, the others report it and end") {
  for (const int victim : {0, 1}) {
    CAPTURE(victim);
    const std::string port = free_port();
    const std::string script = "[ $LOCAL_RANK = 1 ] && echo up; exec sleep 300";
    Child zero(machine(0, 2, port, script));
    Child one(machine(1, 2, port, script));
    REQUIRE(zero.wait_for("up"));
    REQUIRE(one.wait_for("up"));
    kill((victim == 0 ? zero : one).pid(), SIGKILL);
    const auto other = (victim == 0 ? one : zero).wait();
    CHECK(other.code == 1);
    CHECK(other.err.find(victim == 0 ? "machine 0 (127.0.0.1) is gone: its launcher was killed, or its host or the "
                                       "network is down; the ranks of this machine were stopped\n"
                                     : ") is gone: its launcher was killed, or its host or the network is down; the "
                                       "ranks of this machine were stopped\n") != std::string::npos);
  }
}

TEST_CASE("a signal to one launcher ends the job on all machines") {
  const std::string port = free_port();
  const std::string script = "[ $LOCAL_RANK = 1 ] && echo up; exec sleep 300";
  Child zero(machine(0, 2, port, script));
  Child one(machine(1, 2, port, script));
  REQUIRE(zero.wait_for("up"));
  REQUIRE(one.wait_for("up"));
  kill(one.pid(), SIGINT);
  CHECK(one.wait().code == 128 + SIGINT);
  CHECK(zero.wait().code == 128 + SIGINT);
}

TEST_CASE("a signal ends a launcher that only waits for the other machines, and the others too") {
  const std::string port = free_port();
  const std::string script = "echo up; [ $RANK = 0 ] && exit 0; exec sleep 300";
  Child zero(machine(0, 2, port, script, {"--num_processes=2"}));
  Child one(machine(1, 2, port, script, {"--num_processes=2"}));
  REQUIRE(zero.wait_for("up"));
  REQUIRE(one.wait_for("up"));
  std::this_thread::sleep_for(std::chrono::seconds(1));
  kill(zero.pid(), SIGTERM);
  CHECK(zero.wait().code == 128 + SIGTERM);
  CHECK(one.wait().code == 1);
}

TEST_CASE("different options on two machines end both launchers before a rank starts") {
  const std::string port = free_port();
  Child zero(machine(0, 2, port, "echo started"));
  Child one(machine(1, 2, port, "echo started", {"--num_processes=6"}));
  const auto ran = zero.wait();
  CHECK(ran.code == 1);
  CHECK(ran.out == "");
  const std::string host = accelerate::base::host_name();
  CHECK(ran.err == "accelerate_launch: machine 1 (" + host + ") has num_processes 6, machine 0 (" + host +
                       ") has 4; they must be the same\n");
  CHECK(one.wait().err.ends_with(ran.err));
}

TEST_CASE("a machine that does not join is named after the timeout") {
  const std::string port = free_port();
  const auto zero = Child(machine(0, 2, port, "echo started", {"--timeout", "1"})).wait();
  CHECK(zero.code == 1);
  CHECK(zero.out == "");
  CHECK(zero.err == "accelerate_launch: machine 1 did not join at 127.0.0.1:" + port +
                        " within 1 s; start accelerate_launch there, or check the network\n");
  const auto one = Child(machine(1, 2, port, "echo started", {"--timeout", "1"})).wait();
  CHECK(one.code == 1);
  CHECK(one.err == "accelerate_launch: machine 0 at 127.0.0.1:" + port +
                       " does not answer within 1 s: Connection refused; start accelerate_launch there, or check the "
                       "network\n");
}

TEST_CASE("after a failure on one machine all ranks restart with a new port and id") {
  const std::string port = free_port();
  const std::string script =
      "echo start $TORCHELASTIC_RESTART_COUNT; echo $MASTER_PORT $ACCELERATE_JOB_ID >&2; "
      "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; [ $RANK = 1 ] && sleep 0.5 && exit 7; exec sleep 300";
  Child zero(machine(0, 2, port, script, {"--num_processes=2", "--max_restarts=1"}));
  Child one(machine(1, 2, port, script, {"--num_processes=2", "--max_restarts=1"}));
  const auto first = zero.wait();
  const auto second = one.wait();
  CAPTURE(first.err);
  CAPTURE(second.err);
  CHECK(first.code == 0);
  CHECK(second.code == 0);
  CHECK(first.out == "start 0\nstart 1\n");
  CHECK(second.out == "start 0\nstart 1\n");
  CHECK(first.err.find("accelerate_launch: restart 1 of 1 in 0.5 s\n") != std::string::npos);
  const auto line = [](const std::string& text, bool last) {
    const auto end = text.size() - 1;
    return last ? text.substr(text.rfind('\n', end - 1) + 1) : text.substr(0, text.find('\n') + 1);
  };
  CHECK(line(first.err, false) == line(second.err, false));
  CHECK(line(first.err, true) == line(second.err, true));
  CHECK(line(first.err, false) != line(first.err, true));
}

TEST_CASE("restarts over several machines are limited, and a signal to one launcher ends the job") {
  const Words once{"--num_processes=2", "--max_restarts=1"};
  const std::string port = free_port();
  Child zero(machine(0, 2, port, "[ $RANK = 1 ] && exit 7; exec sleep 300", once));
  Child one(machine(1, 2, port, "[ $RANK = 1 ] && exit 7; exec sleep 300", once));
  const auto first = zero.wait();
  CHECK(first.code == 7);
  CHECK(first.err.ends_with("accelerate_launch: no restart: --max_restarts 1 is used up\n"));
  CHECK(one.wait().code == 7);

  for (const int whom : {0, 1}) {
    CAPTURE(whom);
    const std::string other_port = free_port();
    Child a(machine(0, 2, other_port, "echo up; exec sleep 300", once));
    Child b(machine(1, 2, other_port, "echo up; exec sleep 300", once));
    REQUIRE(a.wait_for("up"));
    REQUIRE(b.wait_for("up"));
    kill((whom == 0 ? a : b).pid(), SIGTERM);
    for (auto* each : {&a, &b}) {
      const auto ran = each->wait();
      CHECK(ran.code == 128 + SIGTERM);
      CHECK(ran.out == "up\n");
      CHECK(ran.err.find("restart") == std::string::npos);
    }
  }
}

TEST_CASE("mpi over several machines is refused with mpirun and srun as remedies") {
  const auto ran = Child(machine(0, 2, free_port(), "echo started", {"--backend=mpi"})).wait();
  CHECK(ran.code == 2);
  CHECK(ran.err ==
        "accelerate_launch: --backend mpi on 2 machines is started by mpirun (--mpirun_hostfile FILE) or by srun; gloo "
        "works without\n");
}
