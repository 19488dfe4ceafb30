// SPDX-License-Identifier: Apache-2.0
// Common code of the source tests.
#pragma once

#include "tests/testing.hpp"
//
#include "accelerate/data/loader.hpp"
#include "accelerate/data/memory.hpp"
#include "tests/data/iteration.hpp"

namespace sources {

namespace data = accelerate::data;

inline at::Tensor index(const Numbers& numbers) { return torch::tensor(numbers, torch::kLong); }

/// Sample i is the number first + i; its target is ten times that.
inline std::shared_ptr<const data::Source> numbers(int64_t count, int64_t first = 0) {
  const auto own = torch::arange(first, first + count);
  return data::memory_source(own, own * 10);
}

/// The numbers that a source of such pairs returns for these samples.
inline Numbers read(const data::SourcePtr<data::Batch>& source, const Numbers& samples) {
  const auto batch = source->read(index(samples));
  CHECK(batch.target.equal(batch.data * 10));
  return list(batch.data);
}

/// Batches of one of `world` ranks in a pass, converted by show(batch).
template <typename AnySource, typename Show>
auto share_of(std::shared_ptr<AnySource> source, const data::LoaderOptions& options, int64_t rank, int64_t world,
              Show&& show) {
  data::LoaderOf loader(source, options);
  loader.shard({.rank = rank, .world_size = world});
  std::vector<decltype(show(*loader.begin()))> batches;
  loader.set_epoch(0);
  for (auto& batch : loader) batches.push_back(show(batch));
  CHECK(loader.size() == static_cast<int64_t>(batches.size()));
  return batches;
}

/// The numbers that two ranks read in batches of two, padded from the front.
inline std::vector<std::vector<Numbers>> two_ranks(const data::SourcePtr<data::Batch>& source) {
  std::vector<std::vector<Numbers>> ranks;
  for (int64_t rank = 0; rank < 2; ++rank) {
    ranks.push_back(
        share_of(source, {.batch_size = 2}, rank, 2, [](const data::Batch& batch) { return list(batch.data); }));
  }
  return ranks;
}

/// A source that counts how often each sample is read.
struct CountedReads final : data::Source {
  explicit CountedReads(int64_t samples) : reads(static_cast<size_t>(samples), 0) {}
  [[nodiscard]] int64_t size() const override { return static_cast<int64_t>(reads.size()); }
  [[nodiscard]] data::Batch read(const at::Tensor& indices) const override {
    for (const int64_t i : list(indices)) ++reads[static_cast<size_t>(i)];
    return {indices.clone(), indices * 10};
  }
  mutable Numbers reads;
};

/// Returns [seed, epoch, layer, sample].
struct PassSource final : data::SourceOf<at::Tensor> {
  [[nodiscard]] int64_t size() const override { return 4; }
  [[nodiscard]] at::Tensor read(const at::Tensor& indices) const override { return read_in_pass(indices, {}); }
  [[nodiscard]] at::Tensor read_in_pass(const at::Tensor& indices, const data::ReadContext& pass) const override {
    const auto row = [&](auto value) { return torch::full_like(indices, static_cast<int64_t>(value)); };
    return torch::stack({row(pass.seed), row(pass.epoch), row(pass.layer), indices}, 1);
  }
  [[nodiscard]] bool seeded() const override { return true; }
  [[nodiscard]] bool thread_safe() const override { return false; }
};

/// Sample 1, read in a pass with seed 7 and epoch 3.
template <typename AnyBatch>
AnyBatch in_pass(const data::SourcePtr<AnyBatch>& source) {
  CHECK(source->seeded());
  CHECK_FALSE(source->thread_safe());
  return source->read_in_pass(index({1}), {.seed = 7, .epoch = 3});
}

}  // namespace sources
