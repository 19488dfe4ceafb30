// SPDX-License-Identifier: Apache-2.0
// The stand-in's collectives through c10d.
#include "tests/stand_in/backend.hpp"

#include <c10/core/DeviceGuard.h>

#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "tests/stand_in/support.hpp"

namespace {

using stand_in::Backend;
using stand_in::device;
using Tensors = std::vector<at::Tensor>;

/// Runs body(backend, rank) on ranks that are threads, rank r on device r.
void on_ranks(int size, const std::function<void(Backend&, int)>& body,
              std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const c10::DeviceGuard guard(device(rank));
      const auto backend = c10::make_intrusive<Backend>(*store, "world", rank, size, device(rank), timeout);
      body(*backend, rank);
      try {
        backend->drain();
      } catch (const std::exception&) {  // an error of an aborted collective, which the body checks
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

at::Tensor values(int rank) { return torch::arange(6, device(rank)) + 10 * rank; }

}  // namespace

TEST_CASE("a wait makes the stream wait and not the host; otherwise numbers are wrong and a race is reported") {
  stand_in::set_delay(60'000, stand_in::Slow::side);
  on_ranks(2, [](Backend& backend, int rank) {
    Tensors list{torch::full({1000}, rank + 1.0, device(rank)) * 2};
    const auto waits = stand_in::host_waits(static_cast<c10::DeviceIndex>(rank));
    const auto work = backend.allreduce(list, {});
    const auto too_early = list[0] + 0;
    work->wait();
    const auto sum = list[0].sum();
    CHECK(stand_in::host_waits(static_cast<c10::DeviceIndex>(rank)) == waits);
    CHECK(sum.item<double>() == 6000);
    CHECK(too_early.sum().item<double>() != 6000);
    auto future = work->getFuture();
    future->wait();
    CHECK(at::equal(future->value().toTensorVector()[0].cpu(), torch::full({1000}, 6.0)));
  });
  stand_in::set_delay(0);
  CHECK_FALSE(stand_in::detect_races().empty());
}

TEST_CASE("operations that c10d requires of a backend beyond those of Group") {
  on_ranks(3, [](Backend& backend, int rank) {
    Tensors mine{values(rank)};
    std::vector<Tensors> all{{torch::empty_like(mine[0]), torch::empty_like(mine[0]), torch::empty_like(mine[0])}};
    backend.allgather(all, mine, {})->wait();
    for (int r = 0; r < 3; ++r) CHECK(at::equal(all[0][static_cast<size_t>(r)].cpu(), torch::arange(6) + 10 * r));
    backend.reduce(mine, {.reduceOp = c10d::ReduceOp::MAX, .rootRank = 1})->wait();
    if (rank == 1) CHECK(at::equal(mine[0].cpu(), torch::arange(6) + 20));
    backend.barrier({})->wait();
  });
  CHECK(stand_in::detect_races() == stand_in::kNoRaces);
}

TEST_CASE("sums use rank order, so every run has the same bits") {
  at::Tensor first;
  std::mutex mutex;
  for (int run = 0; run < 5; ++run) {
    on_ranks(3, [&](Backend& backend, int rank) {
      auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(rank));
      Tensors list{torch::randn({999}, generator).to(device(rank))};
      backend.allreduce(list, {})->wait();
      const auto sum = list[0].cpu();
      const std::lock_guard lock(mutex);
      if (first.defined()) CHECK(at::equal(sum, first));
      first = sum;
    });
  }
}

TEST_CASE("a collective that a rank does not join fails at its timeout with an error of the backend") {
  on_ranks(
      2,
      [](Backend& backend, int rank) {
        if (rank == 1) return;
        Tensors list{values(0)};
        const auto work = backend.allreduce(list, {});
        CHECK_FALSE(backend.failure().has_value());
        CHECK_THROWS_AS(backend.drain(), c10::DistBackendError);
        CHECK(backend.failure() == "a collective's time was up");
        work->wait();  // the stream continues
        CHECK(list[0].cpu().numel() == 6);
      },
      std::chrono::milliseconds(200));
}

TEST_CASE("no work waits after give_up()") {
  on_ranks(2, [](Backend& backend, int rank) {
    if (rank == 1) return;
    Tensors list{values(0)};
    const auto work = backend.allreduce(list, {});
    backend.give_up("enough");
    CHECK_THROWS_AS(backend.drain(), c10::DistBackendError);
    CHECK(work->isCompleted());
    CHECK(backend.failure() == "enough");
  });
}

TEST_CASE("different collectives are reported on both ranks") {
  on_ranks(2, [](Backend& backend, int rank) {
    Tensors list{values(rank)};
    rank == 0 ? backend.allreduce(list, {}) : backend.broadcast(list, {});
    CHECK_THROWS_AS(backend.drain(), c10::DistBackendError);
    CHECK(backend.failure()->starts_with("rank 0 calls ALLREDUCE of 6 Long, rank 1 BROADCAST of 6 Long"));
  });
}
