// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/core/completable_work.hpp"

#include <atomic>
#include <thread>

#include "tests/testing.hpp"

namespace {

using accelerate::comm::CompletableWork;

c10::intrusive_ptr<CompletableWork> work_on(at::Tensor tensor) {
  return c10::make_intrusive<CompletableWork>(c10d::OpType::ALLREDUCE, std::vector<at::Tensor>{std::move(tensor)});
}

}  // namespace

TEST_CASE("a future that is requested while the operation ends is completed once") {
  std::atomic<int> failed = 0;
  for (int round = 0; round < 8; ++round) {
    // With many tensors, passing them to the future takes long enough for other threads to interleave.
    const auto work = c10::make_intrusive<CompletableWork>(c10d::OpType::ALLREDUCE, std::vector<at::Tensor>(1'000'000));
    std::atomic<bool> go = false;
    const auto after_go = [&](const auto& act) {
      return std::thread([&go, &failed, act] {
        while (!go) std::this_thread::yield();
        try {
          act();
        } catch (const std::exception&) {
          ++failed;
        }
      });
    };
    if (round % 2 == 0) static_cast<void>(work->getFuture());
    std::vector<std::thread> threads;
    threads.push_back(after_go([&] { work->end(); }));
    for (int i = 0; i < 2; ++i) {
      threads.push_back(after_go([&] {
        while (!work->isCompleted()) std::this_thread::yield();
        work->getFuture()->wait();
      }));
    }
    go = true;
    for (auto& thread : threads) thread.join();
    if (!work->getFuture()->completed()) ++failed;
  }
  CHECK(failed == 0);
}

TEST_CASE("futures from before and after the end hold the tensors or the error") {
  for (const bool before : {true, false}) {
    const auto good = work_on(at::ones({2}));
    const auto bad = work_on(at::ones({2}));
    if (before) {
      static_cast<void>(good->getFuture());
      static_cast<void>(bad->getFuture());
    }
    good->end();
    bad->end(std::make_exception_ptr(std::runtime_error("lost")));
    CHECK(good->getFuture()->value().toTensorVector().at(0).numel() == 2);
    CHECK(bad->getFuture()->hasError());
  }
}

TEST_CASE("a future's callback may query the work") {
  const auto work = work_on(at::ones({2}));
  bool completed = false;
  work->getFuture()->addCallback([&](c10::ivalue::Future&) { completed = work->isCompleted(); });
  work->end();
  CHECK(completed);
}

TEST_CASE("an operation ends once") {
  const auto work = work_on(at::ones({2}));
  work->end();
  work->end(std::make_exception_ptr(std::runtime_error("later")));
  CHECK(work->wait(std::chrono::milliseconds(0)));
}
