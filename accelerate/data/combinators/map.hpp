// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerate/data/collate.hpp"
#include "accelerate/data/derived_source.hpp"
#include "accelerate/data/sample.hpp"
#include "accelerate/data/workers.hpp"

namespace accelerate::data {

namespace detail {

template <typename From, typename Function, typename To>
class Map final : public DerivedSource<To> {
 public:
  Map(SourcePtr<From> source, Function function)
      : DerivedSource<To>("map", source->size(), traits_of(source)),
        source_(std::move(source)),
        function_(std::move(function)) {}

 private:
  [[nodiscard]] To make(const at::Tensor& indices, const ReadContext& context) const override {
    return std::invoke(function_, read_from(*source_, indices, context));
  }

  SourcePtr<From> source_;
  Function function_;
};

template <typename From, typename Function>
auto map_batch(const Function& function, const From& batch, const at::Tensor& indices) {
  using Sample = std::remove_cvref_t<std::invoke_result_t<const Function&, sample_t<From>>>;
  const int64_t rows = indices.size(0);
  const auto* const numbers = indices.const_data_ptr<int64_t>();
  std::vector<Sample> samples;
  samples.reserve(static_cast<size_t>(rows));
  for (int64_t row = 0; row < rows; ++row) {
    now_reading(numbers[row]);
    try {
      samples.push_back(std::invoke(function, sample_of(batch, row, rows)));
    } catch (...) {
      log_failed_sample("map_samples", numbers[row], std::current_exception());
      throw;
    }
  }
  return data::default_collate(samples, {numbers, static_cast<size_t>(rows)});
}

template <typename From, typename Function>
using mapped_batch = decltype(map_batch(std::declval<const Function&>(), std::declval<const From&>(),
                                        std::declval<const at::Tensor&>()));

template <typename From, typename Function>
class MapSamples final : public DerivedSource<mapped_batch<From, Function>> {
 public:
  using BatchType = mapped_batch<From, Function>;

  MapSamples(SourcePtr<From> source, Function function)
      : DerivedSource<BatchType>("map_samples", source->size(), traits_of(source)),
        source_(std::move(source)),
        function_(std::move(function)) {}

 private:
  [[nodiscard]] BatchType make(const at::Tensor& indices, const ReadContext& context) const override {
    return map_batch(function_, read_from(*source_, indices, context), indices);
  }

  SourcePtr<From> source_;
  Function function_;
};

}  // namespace detail

/// Replaces each batch by function(batch), which may modify and return it, or return another type.
///
/// \param function  Called once per batch in the reading thread; its result must have the same number of samples.
template <typename AnySource, typename Function>
[[nodiscard]] auto map(std::shared_ptr<AnySource> source, Function function) {
  using From = batch_of<AnySource>;
  static_assert(std::is_invocable_v<const Function&, From>, "accelerate::data::map: function(batch) is not callable");
  using To = std::remove_cvref_t<std::invoke_result_t<const Function&, From>>;
  return SourcePtr<To>(
      std::make_shared<detail::Map<From, Function, To>>(kept("map", std::move(source)), std::move(function)));
}

/// Replaces each sample by function(sample). A sample is a batch without its first dimension (sample_of); results are
/// collated by default_collate.
template <typename AnySource, typename Function>
[[nodiscard]] auto map_samples(std::shared_ptr<AnySource> source, Function function) {
  using From = batch_of<AnySource>;
  static_assert(std::is_invocable_v<const Function&, sample_t<From>>,
                "accelerate::data::map_samples: function(sample) is not callable; a sample is the result of sample_of");
  using Made = detail::MapSamples<From, Function>;
  return SourcePtr<typename Made::BatchType>(
      std::make_shared<Made>(kept("map_samples", std::move(source)), std::move(function)));
}

}  // namespace accelerate::data
