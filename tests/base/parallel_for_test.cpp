// SPDX-License-Identifier: Apache-2.0
#include "accelerate/base/parallel_for.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

using accelerate::base::parallel_for;

TEST_CASE("each job runs once") {
  std::vector<std::atomic<int>> runs(1000);
  parallel_for(runs.size(), [&](size_t i) { ++runs[i]; });
  for (const auto& count : runs) CHECK(count == 1);
  parallel_for(0, [](size_t) { FAIL("there was none"); });
}

TEST_CASE("the failure of the lowest job is thrown after all running jobs end, and no job starts later") {
  std::atomic<int> begun{0}, ended{0};
  std::string message;
  try {
    parallel_for(1000, [&](size_t i) {
      ++begun;
      if (i < 2) {
        ++ended;
        throw std::runtime_error("job " + std::to_string(i));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // lets the failing calls run
      ++ended;
    });
  } catch (const std::runtime_error& error) {
    message = error.what();
  }
  CHECK(message == "job 0");
  CHECK(begun == ended);
  CHECK(begun < 1000);
}
