// SPDX-License-Identifier: Apache-2.0
// Ranks that crash in the middle of a job and are restarted, with each backend, as under torchrun.
#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "tests/launch/run.hpp"

namespace {

using Lines = std::vector<std::string>;

const std::string program = TEST_BINARY_DIR "/bin/fault_ranks";

/// Output of both ranks of the last attempt, and rank 0's last line. In earlier attempts, in which rank 1 is killed,
/// rank 0 may have been stopped with its line still in a buffer.
Lines certain(const std::string& text) {
  Lines lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    const bool may_be_lost = line.starts_with("start 0, rank 0") || line.starts_with("start 1, rank 0");
    if (!may_be_lost && (line.starts_with("start ") || line.starts_with("done"))) lines.push_back(line);
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

const Lines three_starts{"done: 4", "start 0, rank 1, sum 2", "start 1, rank 1, sum 2", "start 2, rank 0, sum 2",
                         "start 2, rank 1, sum 2"};

}  // namespace

TEST_CASE("ranks that crash between two collectives restart and succeed, over each backend") {
  for (const std::string backend : {TEST_BACKENDS}) {
    CAPTURE(backend);
    const auto ran = testing::launch(
        {"--cpu", "--num_processes", "2", "--backend", backend, "--max_restarts", "3", program, "crashes_twice"});
    CAPTURE(ran.err);
    CHECK(ran.code == 0);
    CHECK(certain(ran.out) == three_starts);
    CHECK(ran.err.find("accelerate_launch: restart 2 of 3 in ") != std::string::npos);
    CHECK(ran.err.find("restart 3 of 3") == std::string::npos);
  }
}

#if TEST_WITH_GLOO
TEST_CASE("the ranks behave equally under torchrun's restarts") {
  const auto ran =
      testing::Child({TEST_PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                      "--max-restarts", "3", "--monitor-interval", "0.1", "--no-python", program, "crashes_twice"},
                     {{"ACCELERATE_BACKEND", "gloo"}, {"ACCELERATE_USE_CPU", "1"}})
          .wait(std::chrono::seconds(180));
  CAPTURE(ran.err);
  CHECK(ran.code == 0);
  CHECK(certain(ran.out) == three_starts);
}
#endif
