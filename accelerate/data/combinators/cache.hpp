// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
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
        there_(static_cast<size_t>(source_->size())) {}

 private:
  [[nodiscard]] AnyBatch make(const at::Tensor& indices, const ReadContext&) const override {
    {
      const std::shared_lock lock(mutex_);
      if (table_ && missing_of(indices).empty()) return table_->read(indices);
    }
    const std::scoped_lock lock(mutex_);
    const auto missing = missing_of(indices);
    if (!missing.empty()) read(missing);
    return table_ ? table_->read(indices) : read_from(*source_, indices, {});
  }

  /// Each of them once.
  std::vector<int64_t> missing_of(const at::Tensor& indices) const {
    const auto* const numbers = indices.const_data_ptr<int64_t>();
    std::vector<int64_t> missing;
    std::copy_if(numbers, numbers + indices.size(0), std::back_inserter(missing),
                 [this](int64_t number) { return !there_[static_cast<size_t>(number)]; });
    std::sort(missing.begin(), missing.end());
    missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
    return missing;
  }

  void read(const std::vector<int64_t>& missing) const {
    std::optional<c10::InferenceMode> plain;  // others may read the table outside of it
    if (c10::InferenceMode::is_enabled()) plain.emplace(false);
    const at::NoGradGuard no_grad;
    const auto numbers = index_tensor(missing);
    const AnyBatch batch = read_from(*source_, numbers, {});
    if (!table_) table_ = RowTable<AnyBatch>::with_room(batch, numbers.size(0), this->size());
    table_->put(batch, numbers, [&](const LeafPath& path) {
      base::fail(ErrorKind::data, {}, "cache",
                 "samples {} to {} do not go with those before{}: shape, dtype or structure differ; a cache holds "
                 "samples of one shape, so it goes below what pads them",
                 missing.front(), missing.back(), path.at());
    });
    for (const int64_t number : missing) there_[static_cast<size_t>(number)] = true;
  }

  SourcePtr<AnyBatch> source_;
  mutable std::shared_mutex mutex_;  // shared by those who need nothing read
  mutable std::vector<bool> there_;
  mutable std::optional<RowTable<AnyBatch>> table_;  // none: nothing was read yet
};

[[noreturn]] inline void fail_seeded() {
  base::fail(ErrorKind::usage, {}, "cache",
             "what the source reads differs from epoch to epoch (a random transform); cache what is below that, and "
             "transform the cache");
}

}  // namespace detail

/// Keeps in memory what it reads: the source is asked for each sample once, when it is first needed. Its samples are of
/// one shape. May be read from several threads.
/// Throws Error (usage) for a source whose samples differ from epoch to epoch, and when a batch is read Error (data)
/// for samples that differ in shape.
template <typename AnySource>
[[nodiscard]] SourcePtr<batch_of<AnySource>> cache(std::shared_ptr<AnySource> source) {
  auto from = kept("cache", std::move(source));
  if (from->seeded()) detail::fail_seeded();
  return std::make_shared<detail::Cache<batch_of<AnySource>>>(std::move(from));
}

}  // namespace accelerate::data
