// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ops/remainder.h>

#include <limits>
#include <memory>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/data/derived_source.hpp"

namespace accelerate::data {

namespace detail {

template <typename AnyBatch>
class Repeat final : public DerivedSource<AnyBatch> {
 public:
  Repeat(SourcePtr<AnyBatch> source, int64_t times)
      : DerivedSource<AnyBatch>("repeat", source->size() * times, traits_of(source)), source_(std::move(source)) {}

 private:
  [[nodiscard]] AnyBatch make(const at::Tensor& indices, const ReadContext& context) const override {
    const int64_t samples = source_->size();
    return read_from(*source_, samples == 0 ? indices : indices.remainder(samples), context);
  }

  SourcePtr<AnyBatch> source_;
};

}  // namespace detail

/// Repeats the samples `times` times. Random transforms above it draw new numbers in every repetition, those below it
/// do not. \throws Error (usage) for negative times, and if the number of samples overflows.
template <typename AnySource>
[[nodiscard]] SourcePtr<batch_of<AnySource>> repeat(std::shared_ptr<AnySource> source, int64_t times) {
  auto from = kept("repeat", std::move(source));
  if (times < 0) base::fail(ErrorKind::usage, {}, "repeat", "times is {}, must be at least 0", times);
  if (from->size() > 0 && times > std::numeric_limits<int64_t>::max() / from->size())
    base::fail(ErrorKind::usage, {}, "repeat", "{} times {} samples are more than an int64 counts", times,
               from->size());
  return std::make_shared<detail::Repeat<batch_of<AnySource>>>(std::move(from), times);
}

}  // namespace accelerate::data
