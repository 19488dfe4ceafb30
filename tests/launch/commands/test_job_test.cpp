// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/test_job.hpp"

#include <doctest/doctest.h>

#include "tests/launch/commands/program.hpp"

using namespace accelerate::launch;

TEST_CASE("two ranks are tested by default without a GPU") {
  const Arguments two{"/b/accelerate_launch", "--num_processes", "2", "/b/accelerate_test_worker"};
  CHECK(test_command({}, {.gpus = 0}, {}, "/b") == two);
  const Arguments one_each{"/b/accelerate_launch", "/b/accelerate_test_worker"};
  CHECK(test_command({}, {.gpus = 2}, {}, "/b") == one_each);
  for (const char* given :
       {"--num_processes=4", "--num-processes", "--num_machines=3", "--ranks_per_machine=4,2", "--config-file",
        "--hosts=a:1", "--hostfile", "--mpirun_hostfile", "--runner=srun", "--device=cuda:1"}) {
    CAPTURE(given);
    CHECK(test_command({given}, {.gpus = 0}, {}, "/b") ==
          Arguments{"/b/accelerate_launch", given, "/b/accelerate_test_worker"});
  }
  CHECK(test_command({"--backend", "gloo"}, {.gpus = 0}, {}, "/b") ==
        Arguments{"/b/accelerate_launch", "--num_processes", "2", "--backend", "gloo", "/b/accelerate_test_worker"});
}

TEST_CASE("the number of ranks of Slurm or the environment is not changed") {
  for (const char* name :
       {"SLURM_JOB_ID", "ACCELERATE_NUM_PROCESSES", "ACCELERATE_NUM_MACHINES", "ACCELERATE_RANKS_PER_MACHINE",
        "ACCELERATE_CONFIG_FILE", "ACCELERATE_HOSTS", "ACCELERATE_HOSTFILE", "ACCELERATE_MPIRUN_HOSTFILE",
        "ACCELERATE_RUNNER", "ACCELERATE_TORCH_DEVICE"}) {
    CAPTURE(name);
    CHECK(test_command({}, {.gpus = 0}, {{name, "4"}}, "/b") ==
          Arguments{"/b/accelerate_launch", "/b/accelerate_test_worker"});
    CHECK(test_command({}, {.gpus = 0}, {{name, ""}}, "/b").size() == 4);  // an empty value counts as unset
  }
}

TEST_CASE("help lists the options; accelerate_launch refuses an invalid option") {
  const auto help = testing::run_program("accelerate_test", {"--num_processes", "2", "--help"});
  CHECK(help.code == 0);
  CHECK(help.out.find("Accepts the options of accelerate_launch") != std::string::npos);
  const auto wrong = testing::run_program("accelerate_test", {"--num_processes", "none"});
  CHECK(wrong.code == 2);
  CHECK(wrong.err.starts_with("accelerate_launch: --num_processes is 'none', must be "));
}
