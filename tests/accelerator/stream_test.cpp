// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <atomic>
#include <mutex>
#include <optional>

#include "accelerate/data/stream_loader.hpp"
#include "tests/accelerator/ranks.hpp"

using accelerate::Accelerator;
using Numbers = std::vector<int64_t>;

namespace {

std::atomic<int> passes_begun = 0;

auto counting_stream(int64_t n) {
  return accelerate::data::make_stream([n] {
    ++passes_begun;
    return [n, next = int64_t{0}]() mutable -> std::optional<int64_t> {
      return next < n ? std::optional(next++) : std::nullopt;
    };
  });
}

/// Results of gather_for_metrics over two epochs of a stream of unknown length.
Numbers gathered(int64_t ranks, int64_t samples, int64_t batch_size, const accelerate::AcceleratorOptions& options) {
  Numbers all;
  on_ranks(
      ranks,
      [&](Accelerator& accelerator) {
        auto loader =
            accelerator.prepare(accelerate::data::StreamLoader(counting_stream(samples), {.batch_size = batch_size}));
        CHECK(loader.total_batch_size() == batch_size * (accelerator.split_batches() ? 1 : ranks));
        for (int epoch = 0; epoch < 2; ++epoch) {
          for (auto& batch : loader) {
            const auto mine = numbers(accelerator.gather_for_metrics(batch));
            if (accelerator.is_main_process()) all.insert(all.end(), mine.begin(), mine.end());
          }
          CHECK(loader.state().epoch == epoch + 1);
        }
      },
      options);
  return all;
}

}  // namespace

TEST_CASE("every sample of a stream of unknown length is gathered once, with and without dispatch and splitting") {
  for (const int64_t ranks : {1, 2, 3, 4}) {
    for (const int64_t samples : {1, 5, 12, 13, 30}) {
      auto twice = numbers(torch::arange(samples).repeat({2}));
      for (const bool dispatch : {true, false}) {
        CHECK(gathered(ranks, samples, 4, {.dispatch_batches = dispatch}) == twice);
        CHECK(gathered(ranks, samples, 12, {.split_batches = true, .dispatch_batches = dispatch}) == twice);
      }
    }
  }
}

TEST_CASE("stream workers on all ranks have rank 0's seed, also if the stream is not random") {
  std::mutex mutex;
  std::multiset<uint64_t> seeds;
  on_ranks(2,
           [&](Accelerator& accelerator) {
             const uint64_t seed = 100 + static_cast<uint64_t>(accelerator.process_index());
             std::optional<uint64_t> mine;
             const auto stream = accelerate::data::make_stream([&] {
               return [&, left = 4]() mutable -> std::optional<int64_t> {
                 mine = accelerate::data::get_worker_info()->seed;
                 return left-- > 0 ? std::optional(7) : std::nullopt;
               };
             });
             auto loader = accelerator.prepare(
                 accelerate::data::StreamLoader(stream, {.batch_size = 1, .seed = seed, .num_workers = 1}));
             for ([[maybe_unused]] auto& batch : loader) continue;
             const std::lock_guard lock(mutex);
             seeds.insert(mine.value());
           },
           {.dispatch_batches = false});
  const uint64_t rank_0_seed = accelerate::data::base_seed_of(100, 0, 0);
  CHECK(seeds == std::multiset<uint64_t>{rank_0_seed, rank_0_seed});
}

TEST_CASE("rank 0 alone reads a stream unless dispatch_batches or device placement is off") {
  const auto begun = [](const accelerate::AcceleratorOptions& options) {
    passes_begun = 0;
    on_ranks(
        2,
        [](Accelerator& accelerator) {
          auto loader = accelerator.prepare(accelerate::data::StreamLoader(counting_stream(4), {.batch_size = 1}));
          for ([[maybe_unused]] auto& batch : loader) continue;
        },
        options);
    return passes_begun.load();
  };
  CHECK(begun({}) == 1);
  CHECK(begun({.dispatch_batches = false}) == 2);
  CHECK(begun({.device_placement = false}) == 2);
}
