// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/core/worker_thread.hpp"

#include <future>
#include <thread>
#include <vector>

#include "tests/testing.hpp"

using accelerate::comm::Deadline;
using accelerate::comm::TaskContext;
using accelerate::comm::WorkerThread;
using std::chrono::milliseconds;

TEST_CASE("a worker executes its jobs in order, and stop() completes queued jobs") {
  std::vector<int> done;
  WorkerThread worker(milliseconds(60'000));
  for (int i = 0; i < 100; ++i) worker.push([&done, i](TaskContext) { done.push_back(i); });
  CHECK(worker.stop(milliseconds(10'000)));
  REQUIRE(done.size() == 100);
  CHECK(std::is_sorted(done.begin(), done.end()));
}

TEST_CASE("a waiting caller executes the next job itself while the thread sleeps") {
  WorkerThread worker(milliseconds(60'000));
  const auto me = std::this_thread::get_id();
  const auto deadline = std::chrono::steady_clock::now() + milliseconds(10'000);
  worker.push([](TaskContext) {});
  // The thread may not have returned from the previous job; then it runs this one too.
  for (bool mine = false; !mine;) {
    std::promise<bool> done;
    Deadline job_deadline{};
    const auto pushed_at = std::chrono::steady_clock::now();
    const auto number = worker.push(
        [&](TaskContext turn) {
          job_deadline = turn.job_deadline->load();
          done.set_value(std::this_thread::get_id() == me);
        },
        WorkerThread::ExecutionPolicy::waiting_caller);
    const bool taken = worker.run_inline(number, deadline);
    if (!taken) worker.push([](TaskContext) {});
    mine = done.get_future().get();
    CHECK(mine == taken);
    CHECK((mine ? job_deadline == deadline : job_deadline >= pushed_at + milliseconds(60'000)));
  }
  CHECK(worker.stop(milliseconds(10'000)));
}

TEST_CASE("a caller executes only the next job, and the thread continues after it") {
  WorkerThread worker(milliseconds(60'000));
  std::promise<void> release, entered, last;
  worker.push([&](TaskContext) {
    entered.set_value();
    release.get_future().wait();
  });
  entered.get_future().wait();
  std::vector<int> order;
  const auto second =
      worker.push([&](TaskContext) { order.push_back(2); }, WorkerThread::ExecutionPolicy::waiting_caller);
  const auto third = worker.push(
      [&](TaskContext) {
        order.push_back(3);
        last.set_value();
      },
      WorkerThread::ExecutionPolicy::waiting_caller);
  CHECK_FALSE(worker.run_inline(second, Deadline::max()));  // the first job is running
  CHECK_FALSE(worker.run_inline(third, Deadline::max()));
  release.set_value();
  last.get_future().wait();
  CHECK(worker.stop(milliseconds(10'000)));
  CHECK(order == std::vector<int>{2, 3});
  CHECK_FALSE(worker.run_inline(third, Deadline::max()));  // the job has ended
}

TEST_CASE("if a job hangs, queued and later jobs fail with the reason") {
  std::promise<void> release, entered;
  const auto gate = std::make_shared<std::shared_future<void>>(release.get_future());
  int never = 0;
  {
    WorkerThread worker(milliseconds(60'000));
    worker.push([gate, &entered](TaskContext) {
      entered.set_value();
      gate->wait();
    });
    entered.get_future().wait();
    worker.push([&](TaskContext turn) { never += !turn.should_run; });
    worker.abandon();
    CHECK(never == 1);
    worker.push([&](TaskContext turn) { never += !turn.should_run; });
    CHECK(never == 2);
    CHECK_FALSE(worker.stop(milliseconds(10'000)));  // returns immediately, because no caller waits for a hanging job
    release.set_value();
  }
}

TEST_CASE("deferred jobs are executed by the next caller, in order") {
  for (const auto next : {WorkerThread::ExecutionPolicy::waiting_caller, WorkerThread::ExecutionPolicy::any_thread,
                          WorkerThread::ExecutionPolicy::thread}) {
    WorkerThread worker(milliseconds(60'000));
    std::vector<int> order;
    std::promise<void> done;
    worker.push([&](TaskContext) { order.push_back(1); }, WorkerThread::ExecutionPolicy::waiting_caller);
    const auto second = worker.push(
        [&](TaskContext) {
          order.push_back(2);
          done.set_value();
        },
        next);
    worker.run_inline(second, Deadline::max());
    done.get_future().wait();
    CHECK(worker.stop(milliseconds(10'000)));
    CHECK(order == std::vector<int>{1, 2});
  }
}

TEST_CASE("a caller does not execute a job for the thread alone") {
  WorkerThread worker(milliseconds(60'000));
  std::promise<std::thread::id> carrier;
  const auto number = worker.push([&](TaskContext) { carrier.set_value(std::this_thread::get_id()); },
                                  WorkerThread::ExecutionPolicy::thread);
  CHECK_FALSE(worker.run_inline(number, Deadline::max()));
  CHECK(carrier.get_future().get() != std::this_thread::get_id());
  CHECK(worker.stop(milliseconds(10'000)));
}

TEST_CASE("wake_thread() lets the thread execute a job of a waiting caller") {
  WorkerThread worker(milliseconds(60'000));
  std::promise<void> done;
  worker.push([&](TaskContext) { done.set_value(); }, WorkerThread::ExecutionPolicy::waiting_caller);
  auto future = done.get_future();
  while (future.wait_for(milliseconds(1)) != std::future_status::ready) worker.wake_thread();
  CHECK(worker.stop(milliseconds(10'000)));
}

TEST_CASE("expire() ends the deadline of the current job if it is that job or an earlier one") {
  WorkerThread worker(milliseconds(600'000));
  std::promise<void> entered, over;
  const auto first = worker.push([&](TaskContext turn) {
    entered.set_value();
    while (!turn.deadline_exceeded()) std::this_thread::yield();
    over.set_value();
  });
  entered.get_future().wait();
  const auto second = worker.push([](TaskContext) {});
  worker.expire(first - 1);
  auto future = over.get_future();
  CHECK(future.wait_for(milliseconds(50)) != std::future_status::ready);
  worker.expire(second);
  future.wait();
  CHECK(worker.stop(milliseconds(10'000)));
}

TEST_CASE("a job on the worker's thread has the worker's timeout and can detect its end") {
  WorkerThread worker(milliseconds(30));
  std::promise<void> over;
  worker.push([&](TaskContext turn) {
    while (!turn.deadline_exceeded()) std::this_thread::yield();
    over.set_value();
  });
  over.get_future().wait();
  CHECK(worker.stop(milliseconds(10'000)));
}

TEST_CASE("a job that destroys the worker does not wait for itself") {
  for (const auto carrier : {WorkerThread::ExecutionPolicy::thread, WorkerThread::ExecutionPolicy::waiting_caller}) {
    auto worker = std::make_shared<WorkerThread>(milliseconds(60'000));
    std::promise<bool> stopped;
    const auto number =
        worker->push([&](TaskContext) { stopped.set_value(worker->stop(milliseconds(600'000))); }, carrier);
    worker->run_inline(number, Deadline::max());
    CHECK(stopped.get_future().get());
  }
}

TEST_CASE("an idle worker stops at once, with a timeout of zero too") {
  int ended = 0;
  for (int round = 0; round < 20; ++round) {
    WorkerThread worker(milliseconds(60'000));
    std::promise<void> done;
    worker.push([&](TaskContext) { done.set_value(); });
    done.get_future().wait();
    std::this_thread::sleep_for(milliseconds(5));  // the worker is probably idle then
    ended += worker.stop(milliseconds(0)) ? 1 : 0;
  }
  CHECK(ended > 0);
}
