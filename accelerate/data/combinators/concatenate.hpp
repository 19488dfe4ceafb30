// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "accelerate/data/derived_source.hpp"
#include "accelerate/data/rows.hpp"

namespace accelerate::data {

namespace detail {

/// Part of a batch that one of several sources provides.
struct SourcePart {
  size_t source;
  at::Tensor places;   ///< [n] int64, positions in the batch
  at::Tensor indices;  ///< [n] int64, numbers of that source
};

/// \param ends  Cumulative ends of the sources.
/// \returns one part per source with requested samples, in order.
std::vector<SourcePart> parts_of(const at::Tensor& indices, const std::vector<int64_t>& ends);

/// \throws Error (usage) without sources, and if the number of samples overflows.
std::vector<int64_t> ends_of(const std::vector<int64_t>& sizes);
[[noreturn]] void fail_unlike(const SourcePart& part, const SourcePart& first, const LeafPath& path);

template <typename AnyBatch>
class Concatenate final : public DerivedSource<AnyBatch> {
 public:
  Concatenate(std::vector<SourcePtr<AnyBatch>> sources, std::vector<int64_t> ends, const SourceTraits& traits)
      : DerivedSource<AnyBatch>("concatenate", ends.back(), traits),
        sources_(std::move(sources)),
        ends_(std::move(ends)) {}

 private:
  [[nodiscard]] AnyBatch make(const at::Tensor& indices, const ReadContext& context) const override {
    const auto parts = parts_of(indices, ends_);
    if (parts.empty()) return read_from(*sources_.front(), indices, context);
    AnyBatch first = read(parts.front(), context);
    if (parts.size() == 1) return first;
    auto batch = RowTable<AnyBatch>::with_room(first, parts.front().places.size(0), indices.size(0));
    for (const SourcePart& part : parts) {
      batch.put(&part == &parts.front() ? first : read(part, context), part.places,
                [&](const LeafPath& path) { fail_unlike(part, parts.front(), path); });
    }
    return batch.tree();
  }

  AnyBatch read(const SourcePart& part, const ReadContext& context) const {
    return read_from(*sources_[part.source], part.indices, context);
  }

  std::vector<SourcePtr<AnyBatch>> sources_;
  std::vector<int64_t> ends_;
};

}  // namespace detail

/// The samples of several sources in sequence; their batches must have one type and shape.
/// \throws Error (usage) without sources. Reading a batch throws Error (data) for samples that do not match.
template <typename AnyBatch>
[[nodiscard]] SourcePtr<AnyBatch> concatenate(std::vector<SourcePtr<AnyBatch>> sources) {
  std::vector<int64_t> sizes;
  SourceTraits traits;
  for (const auto& source : sources) {
    check_source("concatenate", source != nullptr);
    sizes.push_back(source->size());
    traits.seeded = traits.seeded || source->seeded();
    traits.thread_safe = traits.thread_safe && source->thread_safe();
  }
  auto ends = detail::ends_of(sizes);
  return std::make_shared<detail::Concatenate<AnyBatch>>(std::move(sources), std::move(ends), traits);
}
template <typename First, typename... Rest>
[[nodiscard]] SourcePtr<batch_of<First>> concatenate(std::shared_ptr<First> first, std::shared_ptr<Rest>... rest) {
  static_assert((std::same_as<batch_of<Rest>, batch_of<First>> && ...),
                "accelerate::data::concatenate: the sources' batches are of different types; data::map one of them");
  return data::concatenate(std::vector<SourcePtr<batch_of<First>>>{std::move(first), std::move(rest)...});
}

}  // namespace accelerate::data
