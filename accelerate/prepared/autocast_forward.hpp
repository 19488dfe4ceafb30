// SPDX-License-Identifier: Apache-2.0
// Private to handles: runs a forward in the dtypes of a policy.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/Type.h>
#include <torch/nn/modules/adaptive.h>

#include <concepts>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "accelerate/base/error.hpp"
#include "accelerate/precision/autocast.hpp"
#include "accelerate/precision/outputs.hpp"
#include "accelerate/tree/members.hpp"
#include "accelerate/tree/walk.hpp"

namespace torch::nn {
/// Lets accelerate::tree walk the result of AdaptiveLogSoftmaxWithLoss.
inline auto tree_members(ASMoutput& result) { return std::tie(result.output, result.loss); }
}  // namespace torch::nn

namespace accelerate::prepared {

/// Results with tensors that are converted to the policy's output dtype: trees and TorchScript values. A struct needs
/// tree_members(). References are returned as values.
template <typename Result, typename Value = std::remove_cvref_t<Result>>
inline constexpr bool is_converted = (std::same_as<Value, c10::IValue> ||
                                      (tree::holds_tensors<Value> && !tree::detail::holds_references<Value>)) &&
                                     (!std::is_reference_v<Result> || std::copy_constructible<Value>);

/// A class with unknown members: neither a tree nor an aggregate, nor a string or a standard container.
template <typename T>
inline constexpr bool is_opaque =
    std::is_class_v<T> && !std::is_aggregate_v<T> && !std::is_trivially_copyable_v<T> && !tree::holds_tensors<T> &&
    !tree::detail::Struct<T> && !tree::detail::Tuple<T> && !tree::detail::Map<T> && !tree::detail::Sequence<T> &&
    !std::convertible_to<T, std::string_view> && !tree::detail::IsOptional<T>::value && !std::same_as<T, c10::IValue>;

/// \throws Error (usage) always: the result of a forward hides tensors from the conversion.
[[noreturn]] void refuse_result(std::string_view type, c10::ScalarType output, const RankContext& place);
/// Logs a warning once per type.
void warn_of_opaque_result(std::string_view type, c10::ScalarType output, const RankContext& place);

/// Checks that the conversion finds all tensors of a result. Missed tensors stay in low precision and cause errors far
/// from here when they are combined with float32.
///
/// \param output  Dtype for low-precision outputs. If unset, every result is accepted.
/// \throws Error (usage) if a Result has tensors in a struct without tree_members() or in a variant.
/// \note Members of a class with constructors or private members are unknown: the call logs a warning.
template <typename Result>
void check_result([[maybe_unused]] const std::optional<c10::ScalarType>& output,
                  [[maybe_unused]] const RankContext& place) {
  if constexpr (!std::is_void_v<Result>) {
    using Value = std::remove_cvref_t<Result>;
    if constexpr (tree::hides_tensors<Value>) {
      if (output) refuse_result(c10::demangle_type<Value>(), *output, place);
    } else if constexpr (is_opaque<Value>) {
      if (output) warn_of_opaque_result(c10::demangle_type<Value>(), *output, place);
    }
  }
}

/// \returns the result of forward() in the region, with its tensors in the output dtype.
template <typename Forward>
decltype(auto) forward_in_precision(const std::optional<precision::AutocastRegion>& region,
                                    const std::optional<c10::ScalarType>& output, const Forward& forward) {
  using Result = std::invoke_result_t<const Forward&>;
  const auto run = [&]() -> decltype(auto) {
    const precision::Autocast autocast(region);
    return forward();
  };
  if constexpr (!is_converted<Result>) {
    return run();
  } else {
    std::remove_cvref_t<Result> result = run();
    if (!output) return result;
    if constexpr (std::same_as<std::remove_cvref_t<Result>, c10::IValue>) {
      result = precision::to_output(result, *output);
    } else {
      tree::walk(result, [&](at::Tensor& tensor) { tensor = precision::to_output(tensor, *output); });
    }
    return result;
  }
}

}  // namespace accelerate::prepared
