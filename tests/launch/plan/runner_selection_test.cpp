// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/runner_selection.hpp"

#include <doctest/doctest.h>

using namespace accelerate::launch;
using accelerate::env::Variables;

namespace {

Variables step(const std::string& tasks, const std::string& nodes, const std::string& node = "0") {
  return {{"SLURM_JOB_ID", "12"},
          {"SLURM_STEP_ID", "3"},
          {"SLURM_STEP_NUM_TASKS", tasks},
          {"SLURM_STEP_NUM_NODES", nodes},
          {"SLURM_STEP_NODELIST", "n[3-9]"},
          {"SLURM_NODEID", node}};
}

std::string refusal(const LaunchOptions& options) {
  try {
    (void)choose_runner(options, {});
  } catch (const LaunchError& error) {
    CHECK(error.exit_code() == 2);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("the options select the runner, by its name or by their presence") {
  CHECK(choose_runner({}, {}) == Runner::local);
  CHECK(choose_runner({.hosts = "a,b"}, {}) == Runner::ssh);
  CHECK(choose_runner({.hostfile = "h"}, {}) == Runner::ssh);
  CHECK(choose_runner({.mpirun_hostfile = "h"}, {}) == Runner::mpirun);
  CHECK(choose_runner({.runner = "mpirun", .hostfile = "h"}, {}) == Runner::mpirun);
  CHECK(choose_runner({.runner = "srun"}, {}) == Runner::srun);
  CHECK(choose_runner({.num_machines = 2, .machine_rank = 1}, {}) == Runner::local);
}

TEST_CASE("contradicting options are refused") {
  CHECK(refusal({.hostfile = "h", .hosts = "a"}) ==
        "accelerate_launch: --hosts and --hostfile are both given; use only one of them");
  CHECK(refusal({.hostfile = "h", .mpirun_hostfile = "h"}) ==
        "accelerate_launch: --mpirun_hostfile and --hostfile are both given; use only one of them");
  CHECK(refusal({.runner = "ssh"}) ==
        "accelerate_launch: --runner ssh without hosts; give --hosts gpu-a:4,gpu-b:4 or --hostfile FILE");
  CHECK(refusal({.runner = "local", .hosts = "a"}) ==
        "accelerate_launch: --runner local with --hosts; the runners that accept hosts are ssh and mpirun");
}

TEST_CASE("a list of ranks is refused if mpirun or Slurm places them") {
  CHECK(refusal({.ranks_per_machine = "4,2", .mpirun_hostfile = "h"}) ==
        "accelerate_launch: ranks_per_machine is 4,2, which is not for mpirun; give each host its ranks, "
        "gpu-a:4,gpu-b:2");
  const std::string of_slurm =
      "accelerate_launch: ranks_per_machine is 4,2, but Slurm places its tasks; give --num_processes, or let srun "
      "start "
      "one task per node";
  CHECK(refusal({.ranks_per_machine = "4,2", .runner = "srun"}) == of_slurm);
  CHECK_THROWS_WITH_AS(choose_runner({.ranks_per_machine = "4,2"}, step("4", "2")), of_slurm.c_str(), LaunchError);
  CHECK(choose_runner({.ranks_per_machine = "4,2"}, step("2", "2")) == Runner::local);
  CHECK(choose_runner({.ranks_per_machine = "4,2", .hosts = "a,b"}, {}) == Runner::ssh);
}

TEST_CASE("Slurm's variables distinguish a batch script, a launcher per node and one per task") {
  const Variables batch{{"SLURM_JOB_ID", "12"}, {"SLURM_JOB_NUM_NODES", "2"}, {"SLURM_NTASKS", "2"}};
  CHECK(choose_runner({}, batch) == Runner::srun);
  CHECK(choose_runner({.runner = "local"}, batch) == Runner::local);
  CHECK(choose_runner({.num_machines = 2}, batch) == Runner::local);
  CHECK(choose_runner({}, {{"SLURM_JOB_ID", "12"}, {"SLURM_JOB_NUM_NODES", "1"}}) == Runner::local);
  CHECK(choose_runner({}, step("4", "2")) == Runner::task);
  CHECK(choose_runner({}, step("2", "2")) == Runner::local);
  CHECK(choose_runner({}, step("1", "1")) == Runner::local);
}

TEST_CASE("a launcher that srun starts on each node gets its machine rank and the rendezvous address") {
  const auto placed = with_slurm_placement({.num_processes = 4}, step("2", "2", "1"));
  CHECK(placed == LaunchOptions{.num_processes = 4,
                                .num_machines = 2,
                                .machine_rank = 1,
                                .main_process_ip = "n3",
                                .main_process_port = 15000 + (12 * 31 + 3) % 17000});
  const LaunchOptions given{.main_process_ip = "ib3", .main_process_port = 7};
  CHECK(with_slurm_placement(given, step("2", "2")).main_process_ip == "ib3");
  CHECK(with_slurm_placement(given, step("2", "2")).main_process_port == 7);
  CHECK(with_slurm_placement({}, step("1", "1")) == LaunchOptions{});
  CHECK(with_slurm_placement({}, {}) == LaunchOptions{});
  const LaunchOptions by_hand{.num_machines = 2, .machine_rank = 1};
  CHECK(with_slurm_placement(by_hand, step("2", "2")) == by_hand);
}

TEST_CASE("a batch script on one node starts as many ranks as tasks unless their number is given") {
  const Variables batch{{"SLURM_JOB_ID", "12"}, {"SLURM_JOB_NUM_NODES", "1"}, {"SLURM_NTASKS", "4"}};
  CHECK(choose_runner({}, batch) == Runner::local);
  CHECK(with_slurm_placement({}, batch) == LaunchOptions{.num_processes = 4});
  CHECK(with_slurm_placement({.num_processes = 2}, batch).num_processes == 2);
  CHECK(with_slurm_placement({.runner = "local"}, batch) == LaunchOptions{.runner = "local"});
  CHECK(with_slurm_placement({}, {{"SLURM_NTASKS", "4"}}) == LaunchOptions{});
  const Variables per_node{{"SLURM_JOB_ID", "12"}, {"SLURM_JOB_NUM_NODES", "1"}, {"SLURM_NTASKS_PER_NODE", "3"}};
  CHECK(with_slurm_placement({}, per_node) == LaunchOptions{.num_processes = 3});
  CHECK(with_slurm_placement({}, {{"SLURM_JOB_ID", "12"}, {"SLURM_JOB_NUM_NODES", "1"}}) == LaunchOptions{});
}

TEST_CASE("the number of tasks is the job's, else that per node, else one per node, with a log line") {
  Variables job{{"SLURM_NNODES", "5"}};
  CHECK(tasks_of_job(job) == SlurmTasks{.number = 5});
  job["SLURM_JOB_NUM_NODES"] = "2";
  CHECK(tasks_of_job(job) == SlurmTasks{.number = 2});
  job["SLURM_NTASKS_PER_NODE"] = "4";
  CHECK(tasks_of_job(job) == SlurmTasks{.number = 8, .named = true});
  job["SLURM_NPROCS"] = "6";
  CHECK(tasks_of_job(job) == SlurmTasks{.number = 6, .named = true});
  job["SLURM_NTASKS"] = "7";
  CHECK(tasks_of_job(job) == SlurmTasks{.number = 7, .named = true});
  CHECK(tasks_of_job({}) == SlurmTasks{.number = 1});

  CHECK(slurm_choice_text({.number = 8, .named = true}) ==
        "8 ranks, as many as Slurm's job has tasks; --num_processes N chooses otherwise");
  CHECK(slurm_choice_text({.number = 1, .named = true}) ==
        "1 rank, as Slurm's job has one task; --num_processes N chooses otherwise");
  CHECK(slurm_choice_text({.number = 2}) ==
        "2 ranks, one per node, as Slurm's job names no number of tasks; --num_processes N chooses otherwise");
  CHECK(slurm_choice_text({}) ==
        "1 rank, as Slurm's job names no number of tasks; --num_processes N chooses otherwise");
}
