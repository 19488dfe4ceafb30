// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/worker.hpp"

#include <future>
#include <vector>

#include "tests/testing.hpp"

using accelerate::comm::Worker;
using std::chrono::milliseconds;

TEST_CASE("a worker carries its jobs out in order, and stop lets the queued ones end") {
  std::vector<int> done;
  Worker worker;
  for (int i = 0; i < 100; ++i) worker.push([&done, i](Worker::Turn) { done.push_back(i); });
  CHECK(worker.stop(milliseconds(10'000)));
  REQUIRE(done.size() == 100);
  CHECK(std::is_sorted(done.begin(), done.end()));
}

TEST_CASE("when a job hangs, those behind it and those that still come are told that their turn never comes") {
  std::promise<void> release, entered;
  const auto gate = std::make_shared<std::shared_future<void>>(release.get_future());
  int never = 0;
  {
    Worker worker;
    worker.push([gate, &entered](Worker::Turn) {
      entered.set_value();
      gate->wait();
    });
    entered.get_future().wait();
    worker.push([&](Worker::Turn turn) { never += turn == Worker::Turn::never; });
    worker.abandon();
    CHECK(never == 1);
    worker.push([&](Worker::Turn turn) { never += turn == Worker::Turn::never; });
    CHECK(never == 2);
    CHECK_FALSE(worker.stop(milliseconds(10'000)));  // at once: nothing waits for a job that hangs
    release.set_value();
  }
}
