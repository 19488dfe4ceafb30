// SPDX-License-Identifier: Apache-2.0
// Private to handles: a forward in the dtypes of a policy.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/Type.h>
#include <torch/nn/modules/adaptive.h>

#include <concepts>
#include <optional>
#include <ranges>
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

/// Results whose tensors are given back in the policy's output dtype: trees, and what TorchScript returns. A struct
/// takes part by tree_members(); references come back as values.
template <typename Result, typename Value = std::remove_cvref_t<Result>>
inline constexpr bool is_converted = (std::same_as<Value, c10::IValue> ||
                                      (tree::holds_tensors<Value> && !tree::detail::holds_references<Value>)) &&
                                     (!std::is_reference_v<Result> || std::copy_constructible<Value>);

/// A class with unknown members: neither a tree nor an aggregate, nor a smart pointer, string or container.
template <typename T>
inline constexpr bool is_opaque =
    std::is_class_v<T> && !std::is_aggregate_v<T> && !std::is_trivially_copyable_v<T> && !tree::holds_tensors<T> &&
    !tree::detail::Struct<T> && !tree::detail::Tuple<T> && !std::ranges::range<T> &&
    !tree::detail::IsOptional<T>::value && !std::same_as<T, c10::IValue> && !requires {
  typename T::element_type;
};

/// \throws Error (usage) always: the result of a forward hides tensors from the conversion.
[[noreturn]] void refuse_result(std::string_view type, c10::ScalarType output, const Place& place);
/// Logs a warning, once for each type.
void warn_of_opaque_result(std::string_view type, c10::ScalarType output, const Place& place);

/// Tensors that the conversion does not find stay in low precision, and fail beside float32 far from here.
///
/// \param output   What low-precision outputs become. If unset, every result is accepted.
/// \throws Error (usage) if a Result holds tensors in a struct without tree_members() or in a variant.
/// \note Members of a class with constructors or private members are not known: the call logs a warning.
template <typename Result>
void check_result([[maybe_unused]] const std::optional<c10::ScalarType>& output, [[maybe_unused]] const Place& place) {
  if constexpr (!std::is_void_v<Result>) {
    using Value = std::remove_cvref_t<Result>;
    if constexpr (tree::hides_tensors<Value>) {
      if (output) refuse_result(c10::demangle_type<Value>(), *output, place);
    } else if constexpr (is_opaque<Value>) {
      if (output) warn_of_opaque_result(c10::demangle_type<Value>(), *output, place);
    }
  }
}

/// returns   what forward() does, computed within the region, its tensors in the output dtype
template <typename Forward>
decltype(auto) in_precision(const std::optional<precision::AutocastRegion>& region,
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
