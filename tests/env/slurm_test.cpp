// SPDX-License-Identifier: Apache-2.0
#include "accelerate/env/slurm.hpp"

#include <doctest/doctest.h>

namespace slurm = accelerate::env::slurm;

TEST_CASE("the first host of a Slurm host list is expanded") {
  CHECK(slurm::first_host("node[01-04,7]") == "node01");
  CHECK(slurm::first_host("node[7,01-04]") == "node7");
  CHECK(slurm::first_host("alpha,beta") == "alpha");
  CHECK(slurm::first_host("alpha") == "alpha");
  CHECK(slurm::first_host("gpu-a[3-5].example.org,cpu1") == "gpu-a3.example.org");
  CHECK(slurm::first_host("rack[2,5]-n[1-3]") == "rack2-n1");
}

TEST_CASE("text that is not a host list has no first host") {
  CHECK(slurm::first_host("") == std::nullopt);
  CHECK(slurm::first_host(",a") == std::nullopt);
  CHECK(slurm::first_host("node[01-04") == std::nullopt);
  CHECK(slurm::first_host("node[]") == std::nullopt);
  CHECK(slurm::first_host("node]1") == std::nullopt);
}

TEST_CASE("tasks per node are expanded for the requested node") {
  CHECK(slurm::tasks_of_node("2(x3),1", 0) == 2);
  CHECK(slurm::tasks_of_node("2(x3),1", 2) == 2);
  CHECK(slurm::tasks_of_node("2(x3),1", 3) == 1);
  CHECK(slurm::tasks_of_node("2(x3),1", 4) == std::nullopt);
  CHECK(slurm::tasks_of_node("4,8(x2)", 2) == 8);
  CHECK(slurm::tasks_of_node("4", 9) == 4);
}

TEST_CASE("text without task counts is refused") {
  for (const char* text : {"", "x", "2(x", "2(x3", "2(xa)", "2(x0)", "0(x2)", "2,,2", "a,2"}) {
    CAPTURE(text);
    CHECK(slurm::tasks_of_node(text, 1) == std::nullopt);
  }
}

TEST_CASE("a process is in a step only when srun started it") {
  CHECK(slurm::in_step({{"SLURM_STEP_ID", "0"}}));
  CHECK(slurm::in_step({{"SLURM_STEP_ID", "17"}}));
  CHECK_FALSE(slurm::in_step({}));
  CHECK_FALSE(slurm::in_step({{"SLURM_JOB_ID", "7"}, {"SLURM_PROCID", "0"}}));
  CHECK_FALSE(slurm::in_step({{"SLURM_STEP_ID", "4294967290"}}));  // salloc's interactive shell
  CHECK_FALSE(slurm::in_step({{"SLURM_STEP_ID", "4294967291"}}));  // a batch script
}

TEST_CASE("the port of a step is below the ephemeral ports and differs for neighbours") {
  for (const int64_t job : {int64_t{0}, int64_t{1}, int64_t{123456}, int64_t{67108863}}) {
    CHECK(slurm::port(job, 0) >= 15000);
    CHECK(slurm::port(job, 0) < 32000);
    CHECK(slurm::port(job, 0) != slurm::port(job, 1));
    CHECK(slurm::port(job, 0) != slurm::port(job + 1, 0));
  }
}
