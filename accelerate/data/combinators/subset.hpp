// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/index_select.h>

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "accelerate/data/derived_source.hpp"

namespace accelerate::data {

namespace detail {

/// Samples of another source, selected by a table of numbers.
template <typename AnyBatch>
class Subset final : public DerivedSource<AnyBatch> {
 public:
  /// \param numbers  [n] int64.
  Subset(std::string_view name, SourcePtr<AnyBatch> source, const at::Tensor& numbers)
      : DerivedSource<AnyBatch>(name, numbers.size(0), traits_of(source)),
        source_(std::move(source)),
        numbers_(numbers) {}

 private:
  [[nodiscard]] AnyBatch make(const at::Tensor& indices, const ReadContext& context) const override {
    return read_from(*source_, numbers_.index_select(0, indices), context);
  }

  SourcePtr<AnyBatch> source_;
  at::Tensor numbers_;
};

}  // namespace detail

/// Only these samples in this order; a number may be repeated.
///
/// \param indices  [n] int64
/// \throws Error (usage) for a number outside the source.
template <typename AnySource>
[[nodiscard]] SourcePtr<batch_of<AnySource>> subset(std::shared_ptr<AnySource> source, const at::Tensor& indices) {
  auto from = kept("subset", std::move(source));
  const auto numbers = checked_indices("subset", indices, from->size()).clone();
  return std::make_shared<detail::Subset<batch_of<AnySource>>>("subset", std::move(from), numbers);
}
template <typename AnySource>
[[nodiscard]] SourcePtr<batch_of<AnySource>> subset(std::shared_ptr<AnySource> source,
                                                    const std::vector<int64_t>& indices) {
  return data::subset(std::move(source), index_tensor(indices));
}

}  // namespace accelerate::data
