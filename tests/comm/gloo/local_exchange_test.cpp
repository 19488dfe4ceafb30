// SPDX-License-Identifier: Apache-2.0
// Ranks are threads with an object each, as processes have.
#include "accelerate/comm/gloo/local_exchange.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <cmath>
#include <functional>
#include <thread>
#include <vector>

#include "accelerate/comm/core/connection.hpp"
#include "tests/comm/gloo/shared_memories.hpp"
#include "tests/testing.hpp"

using accelerate::comm::FingerprintMismatch;
using accelerate::comm::LocalExchange;
using accelerate::comm::ReduceOp;
using accelerate::comm::SharedMemory;
using shared_memory_testing::failure_of;
using std::chrono::milliseconds;

namespace {

const accelerate::comm::CallOptions kNow{.asynchronous = false};
constexpr int64_t kBlock = SharedMemory::kBlockBytes;

void with_exchanges(int64_t ranks, const std::function<void(LocalExchange&, int64_t)>& test,
                    milliseconds timeout = milliseconds(60'000)) {
  shared_memory_testing::with_shared_memories(ranks, [&](std::shared_ptr<SharedMemory> memory, int64_t rank) {
    LocalExchange exchange(std::move(memory), rank, ranks, timeout);
    test(exchange, rank);
  });
}

/// Two ranks, with each value of the flag.
void on_each_pair(const std::function<void(LocalExchange&, int64_t, bool)>& test) {
  for (const bool flag : {false, true}) {
    with_exchanges(2, [&](LocalExchange& exchange, int64_t rank) { test(exchange, rank, flag); });
  }
}

/// Whole numbers that differ between ranks and are exact in every dtype.
at::Tensor term_of(int64_t count, int64_t rank, at::ScalarType dtype) {
  return ((at::arange(count, at::kLong) * 7 + rank * 3) % 11 + 1).to(dtype);
}

at::Tensor sum_of_terms(int64_t count, int64_t ranks, at::ScalarType dtype) {
  at::Tensor sum = term_of(count, 0, dtype);
  for (int64_t rank = 1; rank < ranks; ++rank) sum = sum + term_of(count, rank, dtype);
  return sum;
}

}  // namespace

TEST_CASE("each operation is right for sizes around that of a block, on 2 to 5 ranks") {
  for (const int64_t ranks : {2, 3, 4, 5}) {
    with_exchanges(ranks, [&](LocalExchange& exchange, int64_t rank) {
      for (const auto dtype : {at::kFloat, at::kDouble, at::kLong, at::kByte, at::kBFloat16}) {
        const auto per_block = kBlock / static_cast<int64_t>(c10::elementSize(dtype));
        for (const int64_t count :
             {int64_t{1}, int64_t{7}, per_block / 8 + 1, per_block - 1, per_block, per_block + 1, 3 * per_block + 5}) {
          CAPTURE(ranks);
          CAPTURE(dtype);
          CAPTURE(count);
          at::Tensor tensor = term_of(count, rank, dtype);
          exchange.all_reduce(tensor, ReduceOp::sum, kNow)->wait(milliseconds(0));
          const at::Tensor sum = sum_of_terms(count, ranks, dtype);
          CHECK(tensor.equal(sum));

          tensor = term_of(count, rank, dtype);
          exchange.reduce(tensor, ReduceOp::sum, ranks - 1, kNow)->wait(milliseconds(0));
          CHECK(tensor.equal(rank == ranks - 1 ? sum : term_of(count, rank, dtype)));

          exchange.broadcast(tensor, ranks - 1, kNow)->wait(milliseconds(0));
          CHECK(tensor.equal(sum));

          const at::Tensor input = term_of(count * ranks, rank, dtype), kept = input.clone();
          at::Tensor part = at::empty({count}, input.options());
          exchange.reduce_scatter(part, input, ReduceOp::sum, kNow)->wait(milliseconds(0));
          CHECK(part.equal(sum_of_terms(count * ranks, ranks, dtype).narrow(0, rank * count, count)));
          CHECK(input.equal(kept));

          at::Tensor whole = at::full({count * ranks}, 0, input.options());
          exchange.all_gather(whole, term_of(count, rank, dtype), kNow)->wait(milliseconds(0));
          for (int64_t other = 0; other < ranks; ++other) {
            CHECK(whole.narrow(0, other * count, count).equal(term_of(count, other, dtype)));
          }
          exchange.barrier(kNow)->wait(milliseconds(0));
        }
      }
    });
  }
}

TEST_CASE("the maximum, the minimum and the product are right") {
  with_exchanges(3, [](LocalExchange& exchange, int64_t rank) {
    const auto reduced = [&](ReduceOp op) {
      at::Tensor tensor = term_of(100'000, rank, at::kInt);
      exchange.all_reduce(tensor, op, kNow)->wait(milliseconds(0));
      return tensor;
    };
    std::vector<at::Tensor> all;
    for (int64_t other = 0; other < 3; ++other) all.push_back(term_of(100'000, other, at::kInt));
    const auto stacked = at::stack(all);
    CHECK(reduced(ReduceOp::max).equal(stacked.amax(0)));
    CHECK(reduced(ReduceOp::min).equal(stacked.amin(0)));
    CHECK(reduced(ReduceOp::product).equal(all[0] * all[1] * all[2]));
  });
}

TEST_CASE("input and output may be the same memory where they overlap in this rank's part") {
  with_exchanges(3, [](LocalExchange& exchange, int64_t rank) {
    const int64_t count = 100'000;
    at::Tensor whole = at::full({3 * count}, -1, at::kFloat);
    at::Tensor mine = whole.narrow(0, rank * count, count);
    mine.copy_(term_of(count, rank, at::kFloat));
    exchange.all_gather(whole, mine, kNow)->wait(milliseconds(0));
    for (int64_t other = 0; other < 3; ++other) {
      CHECK(whole.narrow(0, other * count, count).equal(term_of(count, other, at::kFloat)));
    }
    whole = term_of(3 * count, rank, at::kFloat);
    mine = whole.narrow(0, rank * count, count);
    exchange.reduce_scatter(mine, whole, ReduceOp::sum, kNow)->wait(milliseconds(0));
    CHECK(mine.equal(sum_of_terms(3 * count, 3, at::kFloat).narrow(0, rank * count, count)));
  });
}

TEST_CASE("all ranks compute the same bits, also of zeros and NaN") {
  const float nan = std::nanf("1");
  for (const int64_t ranks : {2, 4}) {
    for (const auto op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
      CAPTURE(ranks);
      std::vector<at::Tensor> results(static_cast<size_t>(ranks));
      with_exchanges(ranks, [&](LocalExchange& exchange, int64_t rank) {
        at::Tensor tensor = term_of(300'000, rank, at::kFloat).div_(3).sin_();
        auto* const values = tensor.mutable_data_ptr<float>();
        values[0] = rank == 0 ? 0.0F : -0.0F;
        values[1] = rank == 0 ? -0.0F : 0.0F;
        values[2] = rank == 0 ? nan : 1.0F;
        values[3] = rank == 0 ? 1.0F : nan;
        exchange.all_reduce(tensor, op, kNow)->wait(milliseconds(0));
        results[static_cast<size_t>(rank)] = tensor.view(at::kInt);
      });
      for (const at::Tensor& other : results) CHECK(other.equal(results[0]));
    }
  }
}

TEST_CASE("pending operations run in the order of the calls, in whatever order they are waited for") {
  with_exchanges(3, [](LocalExchange& exchange, int64_t rank) {
    std::vector<at::Tensor> tensors;
    std::vector<LocalExchange::WorkPtr> works;
    for (int64_t i = 0; i < 40; ++i) {
      tensors.push_back(term_of(1 + i * 5000, rank, at::kFloat));
      works.push_back(exchange.all_reduce(tensors.back(), ReduceOp::sum, {}));
    }
    for (size_t i = rank == 1 ? works.size() : 0; rank == 1 ? i-- > 0 : i < works.size(); i += rank == 1 ? 0 : 1) {
      works[i]->wait(milliseconds(0));
    }
    for (const at::Tensor& tensor : tensors) CHECK(tensor.equal(sum_of_terms(tensor.numel(), 3, at::kFloat)));
  });
}

TEST_CASE("operations that nobody waits for end before the object is destroyed") {
  std::vector<at::Tensor> tensors(2);
  with_exchanges(2, [&](LocalExchange& exchange, int64_t rank) {
    tensors[static_cast<size_t>(rank)] = term_of(1'000'000, rank, at::kFloat);
    std::ignore = exchange.all_reduce(tensors[static_cast<size_t>(rank)], ReduceOp::sum, {});
  });
  for (const at::Tensor& tensor : tensors) CHECK(tensor.equal(sum_of_terms(1'000'000, 2, at::kFloat)));
}

TEST_CASE("calls that do not match are an error on every rank, and later operations fail for the same reason") {
  with_exchanges(3, [](LocalExchange& exchange, int64_t rank) {
    at::Tensor tensor = term_of(rank == 1 ? 5 : 1'000'000, rank, at::kFloat);
    CHECK(failure_of([&] { exchange.all_reduce(tensor, ReduceOp::sum, kNow)->wait(milliseconds(0)); }) == "mismatch");
    CHECK(failure_of([&] { exchange.barrier(kNow)->wait(milliseconds(0)); }) == "mismatch");
  });
  with_exchanges(2, [](LocalExchange& exchange, int64_t rank) {
    at::Tensor tensor = term_of(5, rank, at::kFloat);
    CHECK(failure_of([&] {
            (rank == 0 ? exchange.barrier(kNow) : exchange.broadcast(tensor, 0, kNow))->wait(milliseconds(0));
          }) == "mismatch");
  });
}

TEST_CASE("operations that do not match are an error, also if their announced calls are equal") {
  using accelerate::comm::Agreement;
  using accelerate::comm::Operation;
  on_each_pair([](LocalExchange& exchange, int64_t rank, bool other_size) {
    const accelerate::comm::CallOptions scatter{
        .asynchronous = false,
        .announced = {{.fingerprint = {.operation = Operation::scatter}, .agreement = Agreement::operation_only}}};
    at::Tensor tensor = term_of(other_size && rank == 1 ? 100'000 : 4, rank, at::kFloat), whole = at::empty({8});
    const auto failure = failure_of([&] {
      const bool gathers = !other_size && rank == 1;
      (gathers ? exchange.all_gather(whole, tensor, scatter) : exchange.all_reduce(tensor, ReduceOp::sum, scatter))
          ->wait(milliseconds(0));
    });
    CHECK(failure == "mismatch");
  });
}

TEST_CASE("a rank that ended is detected while another rank, which comes before it, computes") {
  std::atomic<bool> over = false;
  with_exchanges(3, [&](LocalExchange& exchange, int64_t rank) {
    if (rank == 2) return;
    if (rank == 0) {
      CHECK(failure_of([&] { exchange.barrier(kNow)->wait(milliseconds(0)); }) == "rank 2 of the group has ended");
      over = true;
    }
    while (!over) std::this_thread::sleep_for(milliseconds(5));
  });
}

TEST_CASE("a deadline ends an operation although the other rank is there") {
  with_exchanges(2, [](LocalExchange& exchange, int64_t rank) {
    at::Tensor tensor = at::full({100'000'000}, rank, at::kByte);
    const auto begun = std::chrono::steady_clock::now();
    CHECK(failure_of([&] { exchange.all_reduce(tensor, ReduceOp::sum, kNow)->wait(milliseconds(1)); }) != "");
    CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(30));
  });
}

TEST_CASE("a rank that leaves is detected at once, and one that does not call after the time limit") {
  const auto begun = std::chrono::steady_clock::now();
  with_exchanges(3, [](LocalExchange& exchange, int64_t rank) {
    if (rank == 2) return;
    at::Tensor tensor = term_of(5, rank, at::kFloat);
    const auto error = failure_of([&] { exchange.all_reduce(tensor, ReduceOp::sum, kNow)->wait(milliseconds(0)); });
    CHECK(
        (error == "rank 2 of the group has ended" || error == fmt::format("rank {} of the group has ended", 1 - rank)));
  });
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(30));
  std::atomic<bool> over = false;
  with_exchanges(2, [&](LocalExchange& exchange, int64_t rank) {
    at::Tensor tensor = term_of(5, rank, at::kFloat);
    if (rank == 0) {
      CHECK(failure_of([&] { exchange.all_reduce(tensor, ReduceOp::sum, kNow)->wait(milliseconds(100)); }) ==
            "deadline");
      over = true;
    }
    while (!over) std::this_thread::sleep_for(milliseconds(5));
  });
}

TEST_CASE("abandoned operations end at once") {
  std::atomic<bool> over = false;
  with_exchanges(2, [&](LocalExchange& exchange, int64_t rank) {
    if (rank == 0) {
      at::Tensor tensor = term_of(5, rank, at::kFloat);
      const auto running = exchange.all_reduce(tensor, ReduceOp::sum, {});
      const auto queued = exchange.all_reduce(tensor, ReduceOp::sum, {});
      exchange.abandon();
      CHECK(failure_of([&] { running->wait(milliseconds(0)); }) != "");
      CHECK(failure_of([&] { queued->wait(milliseconds(0)); }) == "an earlier operation was abandoned");
      CHECK(failure_of([&] { exchange.barrier(kNow)->wait(milliseconds(0)); }) == "an earlier operation was abandoned");
      over = true;
    }
    while (!over) std::this_thread::sleep_for(milliseconds(5));
  });
}
