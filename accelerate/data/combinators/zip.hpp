// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "accelerate/data/derived_source.hpp"

namespace accelerate::data {

namespace detail {

/// \throws Error (usage) if the sizes differ.
int64_t one_size(const std::vector<int64_t>& sizes);

template <typename... Batches>
class Zip final : public DerivedSource<std::tuple<Batches...>> {
 public:
  explicit Zip(SourcePtr<Batches>... sources)
      : DerivedSource<std::tuple<Batches...>>("zip", one_size({sources->size()...}), traits_of(sources...)),
        sources_(std::move(sources)...) {}

 private:
  [[nodiscard]] std::tuple<Batches...> make(const at::Tensor& indices, const ReadContext& context) const override {
    return std::apply(
        [&](const auto&... sources) {
          return std::tuple<Batches...>{read_from(*sources, indices, context)...};  // a braced list evaluates in order
        },
        sources_);
  }

  std::tuple<SourcePtr<Batches>...> sources_;
};

}  // namespace detail

/// Sample i of all sources: a batch is a std::tuple of the sources' batches. Random transforms at equal depth below zip
/// draw equal numbers, so an image and its mask get the same crop.
/// \throws Error (usage) for sources of different sizes.
template <typename... AnySource>
requires(sizeof...(AnySource) > 0)
    [[nodiscard]] SourcePtr<std::tuple<batch_of<AnySource>...>> zip(std::shared_ptr<AnySource>... sources) {
  return std::make_shared<detail::Zip<batch_of<AnySource>...>>(kept("zip", std::move(sources))...);
}

}  // namespace accelerate::data
