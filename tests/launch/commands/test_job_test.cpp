// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/test_job.hpp"

#include <doctest/doctest.h>

#include "tests/launch/commands/program.hpp"

using namespace accelerate::launch;

TEST_CASE("two ranks are tested where nothing says how many and no GPU is there") {
  const Arguments two{"/b/accelerate_launch", "--num_processes", "2", "/b/accelerate_test_worker"};
  CHECK(test_command({}, {.gpus = 0}, false, "/b") == two);
  const Arguments one_each{"/b/accelerate_launch", "/b/accelerate_test_worker"};
  CHECK(test_command({}, {.gpus = 2}, false, "/b") == one_each);
  CHECK(test_command({}, {.gpus = 0}, true, "/b") == one_each);
  for (const char* given : {"--num_processes=4", "--num-processes", "--hostfile", "--config-file", "--hosts=a:1"}) {
    CHECK(test_command({given}, {.gpus = 0}, false, "/b") ==
          Arguments{"/b/accelerate_launch", given, "/b/accelerate_test_worker"});
  }
  CHECK(test_command({"--backend", "gloo"}, {.gpus = 0}, false, "/b") ==
        Arguments{"/b/accelerate_launch", "--num_processes", "2", "--backend", "gloo", "/b/accelerate_test_worker"});
}

TEST_CASE("help says what it takes; a wrong option is accelerate_launch's to refuse") {
  const auto help = testing::run_program("accelerate_test", {"--num_processes", "2", "--help"});
  CHECK(help.code == 0);
  CHECK(help.out.find("Takes accelerate_launch's options") != std::string::npos);
  const auto wrong = testing::run_program("accelerate_test", {"--num_processes", "none"});
  CHECK(wrong.code == 2);
  CHECK(wrong.err.starts_with("accelerate_launch: --num_processes is 'none', must be "));
}
