// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/core/worker.hpp"

#include <future>
#include <thread>
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

TEST_CASE("whoever waits for a job carries it out when it is the next, while the thread sleeps") {
  Worker worker;
  const auto me = std::this_thread::get_id();
  const auto deadline = std::chrono::steady_clock::now() + milliseconds(10'000);
  worker.push([](Worker::Turn) {});
  // The thread may not be back from that one: then it carries this one out too.
  for (bool mine = false; !mine;) {
    std::promise<bool> done;
    Worker::Deadline told{};
    const auto number = worker.push(
        [&](Worker::Turn turn) {
          told = turn.deadline;
          done.set_value(std::this_thread::get_id() == me);
        },
        /*wake=*/false);
    const bool taken = worker.take_over(number, deadline);
    if (!taken) worker.push([](Worker::Turn) {});
    mine = done.get_future().get();
    CHECK(mine == taken);
    CHECK(told == (mine ? deadline : Worker::Deadline::max()));
  }
  CHECK(worker.stop(milliseconds(10'000)));
}

TEST_CASE("a job that is not the next is not taken over, and the thread carries on after one that was") {
  Worker worker;
  std::promise<void> release, entered, last;
  worker.push([&](Worker::Turn) {
    entered.set_value();
    release.get_future().wait();
  });
  entered.get_future().wait();
  std::vector<int> order;
  const auto second = worker.push([&](Worker::Turn) { order.push_back(2); }, /*wake=*/false);
  const auto third = worker.push(
      [&](Worker::Turn) {
        order.push_back(3);
        last.set_value();
      },
      /*wake=*/false);
  CHECK_FALSE(worker.take_over(second, Worker::Deadline::max()));  // the first is under way
  CHECK_FALSE(worker.take_over(third, Worker::Deadline::max()));
  release.set_value();
  last.get_future().wait();
  CHECK(worker.stop(milliseconds(10'000)));
  CHECK(order == std::vector<int>{2, 3});
  CHECK_FALSE(worker.take_over(third, Worker::Deadline::max()));  // it is over
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
    worker.push([&](Worker::Turn turn) { never += !turn.comes; });
    worker.abandon();
    CHECK(never == 1);
    worker.push([&](Worker::Turn turn) { never += !turn.comes; });
    CHECK(never == 2);
    CHECK_FALSE(worker.stop(milliseconds(10'000)));  // at once: nothing waits for a job that hangs
    release.set_value();
  }
}
