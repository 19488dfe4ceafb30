// SPDX-License-Identifier: Apache-2.0
// A job under srun, with a replacement program that behaves like srun: places in variables, all tasks stopped when one
// fails, the highest exit code of all tasks.
#include <doctest/doctest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "accelerate/base/error.hpp"
#include "launch/plan/options.hpp"
#include "tests/launch/run.hpp"
#include "tests/launch/scratch.hpp"

using testing::Child;
using testing::Ran;
using testing::Scratch;
using Words = std::vector<std::string>;

namespace {

constexpr const char* fake_srun = R"(#!/bin/sh
at_bad_exit=$1
while [ "$1" != -- ]; do shift; done
shift
export SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2 SLURM_STEP_NODELIST=localhost SLURM_NODEID=0
SLURM_PROCID=0 SLURM_LOCALID=0 "$@" &
zero=$!
until [ -e "$UP" ]; do sleep 0.01; done
SLURM_PROCID=1 SLURM_LOCALID=1 "$@"
one=$?
[ "$at_bad_exit" = --kill-on-bad-exit=0 ] || kill $zero
wait $zero
highest=$?
[ $one -gt $highest ] && highest=$one
exit $highest
)";

/// Runs ranks under accelerate_launch in an allocation.
///
/// \param more  Further variables that Slurm would set; "" removes one.
Ran in_allocation(const Words& options, const std::string& of_rank_1, const accelerate::env::Variables& more = {}) {
  const Scratch scratch;
  const std::string srun = scratch.path + "/srun";
  std::ofstream(srun) << fake_srun;
  std::filesystem::permissions(srun, std::filesystem::perms::owner_all);
  Words words{"--runner", "srun", "--cpu"};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"sh", "-c", "[ $SLURM_PROCID = 1 ] || { touch \"$UP\"; exec sleep 1000; }; " + of_rank_1});
  accelerate::env::Variables variables{{"PATH", scratch.path + ":" + accelerate::env::current_variables().at("PATH")},
                                       {"UP", scratch.path + "/up"},
                                       {"SLURM_JOB_ID", "7"},
                                       {"SLURM_JOB_NUM_NODES", "2"},
                                       {"SLURM_NTASKS", "2"}};
  for (const auto& [name, value] : more) variables[name] = value;
  return Child(testing::launcher(words), variables).wait();
}

}  // namespace

TEST_CASE("srun: the first failed rank determines the exit code, also if stopped ranks have higher ones") {
  const auto failed = in_allocation({}, "echo loss nan; exit 7");
  CAPTURE(failed.err);
  CHECK(failed.code == 7);
  CHECK(failed.err.find(") ended with exit code 7. Its last lines follow.\nloss nan\n") != std::string::npos);
  CHECK(failed.err.find(") ended with exit code 143.\n") != std::string::npos);  // srun
  CHECK(in_allocation({}, "kill -USR1 $$").code == 138);
  CHECK(in_allocation({"--label", "--quiet"}, "exit 9").code == 9);
}

TEST_CASE("srun: all ranks restart, and the first rank's failure is the reason") {
  const auto ran = in_allocation({"--max_restarts", "1"}, "echo start $TORCHELASTIC_RESTART_COUNT; exit 7");
  CAPTURE(ran.err);
  CHECK(ran.code == 7);
  CHECK(ran.out == "start 0\nstart 1\n");
  CHECK(ran.err.find("accelerate_launch: restart 1 of 1 in 0.5 s\n") != std::string::npos);
  CHECK(ran.err.ends_with("accelerate_launch: no restart: --max_restarts 1 is used up\n"));
}

TEST_CASE("srun: one line states the number of ranks and its source if none was given") {
  const auto output = [](const Words& options, const accelerate::env::Variables& more) {
    const std::string err = in_allocation(options, "exit 7", more).err;
    return err.substr(0, err.find('\n'));
  };
  CHECK(output({}, {}) ==
        "accelerate_launch: 2 ranks, as many as Slurm's job has tasks; --num_processes N chooses otherwise");
  CHECK(output({}, {{"SLURM_NTASKS", ""}}) ==
        "accelerate_launch: 2 ranks, one per node, as Slurm's job names no number of tasks; --num_processes N chooses "
        "otherwise");
  CHECK(output({"--num_processes", "2"}, {}).find("chooses otherwise") == std::string::npos);
  CHECK(output({"--quiet"}, {}).find("chooses otherwise") == std::string::npos);
}

TEST_CASE("srun: a launcher around a rank refuses a main launcher of another version") {
  const std::string version = accelerate::launch::parse_arguments({"--version"}).print.value().substr(18);
  const auto around = [](const std::string& of_starter) {
    return Child(testing::launcher({"--task", "--", "sh", "-c", "echo ${ACCELERATE_LAUNCHER_VERSION-none}"}),
                 {{"ACCELERATE_LAUNCHER_VERSION", of_starter}})
        .wait();
  };
  const auto other = around("9.9");
  CHECK(other.code == 1);
  CHECK(other.out == "");
  CHECK(other.err == "accelerate_launch: " + accelerate::base::host_name() + " has accelerate_launch " +
                         version.substr(0, version.size() - 1) +
                         ", the host that starts the job has 9.9; they must be the same\n");
  const auto same = around(version.substr(0, version.size() - 1));
  CHECK(same.code == 0);
  CHECK(same.out == "none\n");
}

TEST_CASE("srun: a rank that a signal to the whole step ended before its launcher has not failed") {
  Child task(testing::launcher({"--task", "--", "sh", "-c", "echo up; kill -TERM $$"}));
  REQUIRE(task.wait_for("up\n"));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the rank has ended
  kill(task.pid(), SIGTERM);
  const Ran result = task.wait();
  CHECK(result.code == 143);
  CHECK(result.err == "");
  const Ran alone = Child(testing::launcher({"--task", "--", "sh", "-c", "kill -TERM $$"})).wait();
  CHECK(alone.code == 143);
  CHECK(alone.err.find(") ended with signal 15 (terminated)") != std::string::npos);
}

TEST_CASE("srun: without a reported failure the launcher exits with srun's exit code") {
  const auto killed = in_allocation(
      {}, "parent() { awk '/^PPid/ {print $2}' /proc/$1/status; }; kill -9 $(parent $(parent $$)); sleep 1000");
  CAPTURE(killed.err);
  CHECK(killed.code == 143);
}

TEST_CASE("srun: a failed rank is a failure, also if another rank requests a restart") {
  const auto ran = in_allocation({"--resume_code", "75"}, "exit 3");
  CAPTURE(ran.err);
  CHECK(ran.code == 3);
}
