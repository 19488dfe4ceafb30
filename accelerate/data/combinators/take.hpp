// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/data/derived_source.hpp"

namespace accelerate::data {

namespace detail {

template <typename AnyBatch>
class Take final : public DerivedSource<AnyBatch> {
 public:
  Take(SourcePtr<AnyBatch> source, int64_t count)
      : DerivedSource<AnyBatch>("take", count, traits_of(source)), source_(std::move(source)) {}

 private:
  [[nodiscard]] AnyBatch make(const at::Tensor& indices, const ReadContext& context) const override {
    return read_from(*source_, indices, context);
  }

  SourcePtr<AnyBatch> source_;
};

}  // namespace detail

/// The first `count` samples. \throws Error (usage) for a negative count, and for more samples than the source has.
template <typename AnySource>
[[nodiscard]] SourcePtr<batch_of<AnySource>> take(std::shared_ptr<AnySource> source, int64_t count) {
  auto from = kept("take", std::move(source));
  if (count < 0 || count > from->size())
    base::fail(ErrorKind::usage, {}, "take", "count is {}, must be 0 to {}, the number of samples", count,
               from->size());
  return std::make_shared<detail::Take<batch_of<AnySource>>>(std::move(from), count);
}

}  // namespace accelerate::data
