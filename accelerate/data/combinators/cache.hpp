// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/data/derived_source.hpp"
#include "accelerate/data/rows.hpp"

namespace accelerate::data {

namespace detail {

template <typename AnyBatch>
class Cache final : public DerivedSource<AnyBatch> {
 public:
  explicit Cache(SourcePtr<AnyBatch> source)
      : DerivedSource<AnyBatch>("cache", source->size(), SourceTraits()),
        source_(std::move(source)),
        samples_(static_cast<size_t>(source_->size()), Sample::missing) {}

 private:
  enum class Sample : uint8_t { missing, under_way, there };

  [[nodiscard]] AnyBatch make(const at::Tensor& indices, const ReadContext& context) const override {
    while (true) {
      {
        std::shared_lock lock(mutex_);
        reading_ended_.wait(lock, [&] { return !any(indices, Sample::under_way) || any(indices, Sample::missing); });
        if (!any(indices, Sample::missing))
          return table_ ? table_->read(indices, context) : read_from(*source_, indices, {});
      }
      if (const auto mine = claim(indices); !mine.empty()) fetch(mine);
    }
  }

  [[nodiscard]] bool any(const at::Tensor& indices, Sample state) const {
    const auto* const numbers = indices.const_data_ptr<int64_t>();
    return std::any_of(numbers, numbers + indices.size(0),
                       [&](int64_t number) { return samples_[static_cast<size_t>(number)] == state; });
  }

  void become(const std::vector<int64_t>& numbers, Sample state) const {
    for (const int64_t number : numbers) samples_[static_cast<size_t>(number)] = state;
  }

  /// Claims missing samples that no thread reads yet, each once; the caller must read them.
  std::vector<int64_t> claim(const at::Tensor& indices) const {
    const auto* const numbers = indices.const_data_ptr<int64_t>();
    std::vector<int64_t> mine;
    const std::scoped_lock lock(mutex_);
    std::copy_if(numbers, numbers + indices.size(0), std::back_inserter(mine),
                 [this](int64_t number) { return samples_[static_cast<size_t>(number)] == Sample::missing; });
    std::sort(mine.begin(), mine.end());
    mine.erase(std::unique(mine.begin(), mine.end()), mine.end());
    become(mine, Sample::under_way);
    return mine;
  }

  /// After a failure the samples are missing again, and waiting threads read them.
  void fetch(const std::vector<int64_t>& mine) const {
    const auto end_reading = [&](Sample state) {
      become(mine, state);
      reading_ended_.notify_all();
    };
    try {
      std::optional<c10::InferenceMode> plain;  // other threads may read the table outside of inference mode
      if (c10::InferenceMode::is_enabled()) plain.emplace(false);
      const at::NoGradGuard no_grad;
      const auto numbers = index_tensor(mine);
      const AnyBatch batch = read_from(*source_, numbers, {});
      const std::scoped_lock lock(mutex_);
      put(batch, numbers);
      end_reading(Sample::there);
    } catch (...) {
      const std::scoped_lock lock(mutex_);
      end_reading(Sample::missing);
      throw;
    }
  }

  void put(const AnyBatch& batch, const at::Tensor& numbers) const {
    if (!table_) table_ = RowTable<AnyBatch>::with_room(batch, numbers.size(0), this->size());
    const auto* const first = numbers.const_data_ptr<int64_t>();
    table_->put(batch, numbers, [&](const LeafPath& path) {
      base::fail(ErrorKind::data, {}, "cache",
                 "samples {} to {} do not match the previous ones{}: shape, dtype or structure, or the values that are "
                 "stored once for all of them, differ; a cache holds "
                 "samples of one shape, so it must be below the source that pads them",
                 *first, first[numbers.size(0) - 1], path.at());
    });
  }

  SourcePtr<AnyBatch> source_;
  mutable std::shared_mutex mutex_;  // released while the source reads
  mutable std::condition_variable_any reading_ended_;
  mutable std::vector<Sample> samples_;
  mutable std::optional<RowTable<AnyBatch>> table_;  // unset before the first read
};

[[noreturn]] inline void fail_seeded() {
  base::fail(ErrorKind::usage, {}, "cache",
             "the source returns other samples in each epoch (a random transform); cache the source below it, and "
             "transform the cache");
}

}  // namespace detail

/// Keeps samples in memory: each sample is read from the source once, on first use. Samples must have equal shapes.
/// Parts of a batch that all its samples share must be equal in all batches; lists of user-defined types must have
/// equal lengths. Thread-safe; threads read different samples concurrently if the source allows it.
///
/// \throws Error (usage) if the samples of the source differ between epochs. Reading a batch throws Error (data) if its
///         samples violate the conditions.
template <typename AnySource>
[[nodiscard]] SourcePtr<batch_of<AnySource>> cache(std::shared_ptr<AnySource> source) {
  auto from = kept("cache", std::move(source));
  if (from->seeded()) detail::fail_seeded();
  return std::make_shared<detail::Cache<batch_of<AnySource>>>(std::move(from));
}

}  // namespace accelerate::data
