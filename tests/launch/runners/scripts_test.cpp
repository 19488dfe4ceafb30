// SPDX-License-Identifier: Apache-2.0
// The scripts that --dry_run prints for each runner behave in a shell as the launcher does.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/launch/run.hpp"
#include "tests/launch/scratch.hpp"

using accelerate::env::Variables;
using testing::Child;
using testing::launch;
using testing::Ran;
using testing::Scratch;
using Words = std::vector<std::string>;

namespace {

const std::string self = TEST_BINARY_DIR "/bin/accelerate_launch";

/// Replacements of mpirun and srun that print their arguments, one per line, and the length of the job's id.
struct FakePrograms {
  FakePrograms() {
    for (const char* name : {"mpirun", "srun"}) {
      const std::string path = scratch.path + "/" + name;
      std::ofstream(path) << "#!/bin/sh\nprintf '<%s>' \"$@\"\necho \" id of ${#ACCELERATE_JOB_ID}\"\n";
      std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    }
  }
  [[nodiscard]] Variables variables(Variables more = {}) const {
    more["PATH"] = scratch.path + ":" + accelerate::env::current_variables().at("PATH");
    return more;
  }
  Scratch scratch;
};

struct Scripted {
  std::string script;
  Ran ran;
};

Scripted dry(const Words& options, const Words& command, const Variables& variables) {
  Words words{"--dry_run"};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), command.begin(), command.end());
  const auto script = Child(testing::launcher(words), variables).wait();
  CAPTURE(script.err);
  CHECK(script.code == 0);
  const auto ran = Child({"sh", "-c", script.out}, variables).wait();
  CHECK(ran.code == 0);
  return {script.out, ran};
}

}  // namespace

TEST_CASE("a dry run with mpirun prints mpirun with hosts and names, and the script creates an id") {
  const FakePrograms programs;
  const auto [script, ran] = dry({"--runner", "mpirun", "--hosts", "a:1,b:1", "--main_process_port", "4000"},
                                 {"./train", "it's", "$HOME"}, programs.variables({{"ACCELERATE_JOB_ID", ""}}));
  CHECK(ran.out.starts_with("<-n><2><-H><a:1,b:1><-x><ACCELERATE_JOB_ID><-x>"));
  CHECK(ran.out.find("<-x><MASTER_ADDR><-x><MASTER_PORT>") != std::string::npos);
  CHECK(ran.out.ends_with("<" + self + "><--task><--><./train><it's><$HOME> id of 32\n"));
  CHECK(script.find("MASTER_ADDR=a MASTER_PORT=4000") != std::string::npos);
  CHECK(script.find("ACCELERATE_JOB_ID=$(od ") != std::string::npos);
}

TEST_CASE("a dry run in a Slurm allocation prints srun, and the script creates an id") {
  const FakePrograms programs;
  const auto [script, ran] =
      dry({"--label"}, {"./train", "it's"},
          programs.variables({{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NUM_NODES", "2"}, {"SLURM_NTASKS", "4"}}));
  CHECK(ran.out ==
        "<--kill-on-bad-exit=1><--ntasks=4><--><" + self + "><--task><--label=1><--><./train><it's> id of 32\n");
}

TEST_CASE("a dry run of a task of srun prints its program with Slurm's rank variables") {
  const auto [script, ran] =
      dry({"--gradient_accumulation_steps", "4"},
          {"sh", "-c", "echo $SLURM_PROCID $ACCELERATE_GRADIENT_ACCUMULATION_STEPS \"$0\"", "a b"},
          {{"SLURM_JOB_ID", "7"},
           {"SLURM_STEP_ID", "0"},
           {"SLURM_STEP_NUM_TASKS", "4"},
           {"SLURM_STEP_NUM_NODES", "2"},
           {"SLURM_NTASKS", "4"},
           {"SLURM_PROCID", "3"},
           {"SLURM_LOCALID", "1"},
           {"SLURM_NODEID", "1"}});
  CHECK(ran.out == "3 4 a b\n");
  CHECK(script.find("ACCELERATE_JOB_ID") == std::string::npos);  // each task would generate another one
}

TEST_CASE("a dry run of one of several machines prints its ranks and the rendezvous address") {
  const auto [script, ran] = dry(
      {"--num_machines", "2", "--machine_rank", "1", "--main_process_ip", "gpu-a", "--main_process_port", "4000",
       "--num_processes", "4", "--backend", "gloo"},
      {"sh", "-c", "sleep 0.$((LOCAL_RANK * 3)); echo $RANK $WORLD_SIZE $LOCAL_RANK $MASTER_ADDR $MASTER_PORT"}, {});
  CHECK(ran.out == "2 4 0 gpu-a 4000\n3 4 1 gpu-a 4000\n");
}

TEST_CASE("a run and its script ignore the address on one machine, and report it") {
  const Words words{"--main_process_ip", "gpu-b", "--main_process_port", "0", "--num_processes", "1"};
  const Words command{"sh", "-c", "echo $MASTER_ADDR"};
  CHECK(dry(words, command, {}).ran.out == "127.0.0.1\n");
  Words all = words;
  all.insert(all.end(), command.begin(), command.end());
  const auto run = Child(testing::launcher(all)).wait();
  CHECK(run.out == "127.0.0.1\n");
  CHECK(run.err == "accelerate_launch: main_process_ip gpu-b is not used on one machine; its ranks use 127.0.0.1\n");
}

TEST_CASE("a dry run refuses the same options as a run: mpi on several machines") {
  const Words by_hand{"--num_machines",
                      "2",
                      "--machine_rank",
                      "1",
                      "--main_process_ip",
                      "gpu-a",
                      "--backend",
                      "mpi",
                      "--num_processes",
                      "2",
                      "true"};
  const std::string refusal =
      "accelerate_launch: --backend mpi on 2 machines is started by mpirun (--mpirun_hostfile FILE) or by srun; gloo "
      "works without\n";
  auto dry_run = by_hand;
  dry_run.insert(dry_run.begin(), "--dry_run");
  for (const auto& words : {by_hand, dry_run}) {
    const auto ran = Child(testing::launcher(words)).wait();
    CHECK(ran.code == 2);
    CHECK(ran.out == "");
    CHECK(ran.err == refusal);
  }
}
