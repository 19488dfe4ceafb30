// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/batch_memory.hpp"

#include <set>
#include <thread>

#include "tests/data/support.hpp"

using accelerate::data::BatchMemory;
using accelerate::data::LoaderOptions;
using sources::index;
using sources::list;
using sources::Numbers;

namespace {

/// Addresses of all batches of an epoch.
std::set<const void*> places(const LoaderOptions& options) {
  auto loader = accelerate::data::from_tensors(torch::arange(4000).view({1000, 4}), torch::arange(1000), options);
  std::set<const void*> seen;
  for (auto& batch : loader) {
    seen.insert(batch.data.const_data_ptr());
    seen.insert(batch.target.const_data_ptr());
  }
  return seen;
}

}  // namespace

TEST_CASE("memory that nobody holds any more serves the next taker of as many bytes") {
  BatchMemory memory;
  auto first = memory.take({2, 3}, at::kFloat);
  const void* const place = first.const_data_ptr();
  const auto second = memory.take({2, 3}, at::kFloat);
  CHECK(second.const_data_ptr() != place);
  first.reset();
  CHECK(memory.take({5, 3}, at::kFloat).const_data_ptr() != place);
  const auto third = memory.take({6}, at::kInt);  // as many bytes
  CHECK(third.const_data_ptr() == place);
  CHECK(third.sizes() == at::IntArrayRef{6});
  CHECK((third.scalar_type() == at::kInt));
  CHECK(third.is_contiguous());
  CHECK(memory.take({0, 3}, at::kFloat).numel() == 0);
}

TEST_CASE("a view keeps the values of its batch, and what a user does to a batch is not the next one's") {
  BatchMemory memory;
  auto batch = memory.take({4}, at::kLong);
  batch.copy_(index({1, 2, 3, 4}));
  const auto view = batch.slice(0, 2);
  batch.reset();
  auto next = memory.take({4}, at::kLong).fill_(9);
  CHECK(list(view) == Numbers{3, 4});
  next = next.to(at::kFloat);  // drops it
  auto changed = memory.take({4}, at::kFloat);
  changed.unsqueeze_(0);
  changed.requires_grad_();
  changed.reset();
  CHECK(memory.take({4}, at::kFloat).sizes() == at::IntArrayRef{4});
  CHECK_FALSE(memory.take({4}, at::kFloat).requires_grad());
}

TEST_CASE("what autograd saved of a batch stays until its backward") {
  BatchMemory memory;
  const auto weight = torch::ones({3}, at::TensorOptions().requires_grad(true));
  at::Tensor loss;
  {
    const auto batch = memory.take({3}, at::kFloat).fill_(2);
    loss = (weight * batch).sum();
  }
  memory.take({3}, at::kFloat).fill_(7);
  loss.backward();
  CHECK(weight.grad().equal(torch::full({3}, 2.0)));
}

TEST_CASE("a loop takes the same memory for all its batches, with workers as much as they read ahead") {
  CHECK(places({.batch_size = 10, .shuffle = true}).size() == 2);
  const auto ahead = places({.batch_size = 10, .num_workers = 2, .prefetch_factor = 3});
  CHECK(ahead.size() <= 2 * (2 * 3 + 1));
}

TEST_CASE("a user who keeps every batch keeps their values, however many") {
  auto loader = accelerate::data::from_tensors(torch::arange(600), torch::arange(600) * 10, {.batch_size = 2});
  std::vector<accelerate::data::Batch> kept;
  for (auto& batch : loader) kept.push_back(batch);
  CHECK(kept.size() == 300);
  for (size_t i = 0; i < kept.size(); ++i) {
    CHECK(list(kept[i].data) == Numbers{static_cast<int64_t>(2 * i), static_cast<int64_t>(2 * i + 1)});
    CHECK(kept[i].target.equal(kept[i].data * 10));
  }
}

TEST_CASE("several threads take at a time, and none is given what another one holds") {
  BatchMemory memory;
  std::vector<std::thread> threads;
  std::atomic<int64_t> wrong{0};
  for (int64_t id = 0; id < 4; ++id) {
    threads.emplace_back([&, id] {
      for (int64_t round = 0; round < 2000; ++round) {
        const auto mine = memory.take({8}, at::kLong);
        auto* const numbers = mine.mutable_data_ptr<int64_t>();
        std::fill_n(numbers, 8, id * 10000 + round);
        if (round % 64 == 0) std::this_thread::yield();
        for (int64_t i = 0; i < 8; ++i) wrong += numbers[i] != id * 10000 + round;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}
