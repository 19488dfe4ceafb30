// SPDX-License-Identifier: Apache-2.0
// Private to handles: a forward in the dtypes of a policy.
#pragma once

#include <ATen/core/ivalue.h>

#include <concepts>
#include <optional>
#include <type_traits>

#include "accelerate/precision/autocast.hpp"
#include "accelerate/precision/outputs.hpp"
#include "accelerate/tree/walk.hpp"

namespace accelerate::prepared {

/// Results whose tensors are given back in the policy's output dtype: trees, and what TorchScript returns. A struct
/// takes part by tree_members(); references come back as values.
template <typename Result, typename Value = std::remove_cvref_t<Result>>
inline constexpr bool is_converted = (std::same_as<Value, c10::IValue> ||
                                      (tree::holds_tensors<Value> && !tree::detail::holds_references<Value>)) &&
                                     (!std::is_reference_v<Result> || std::copy_constructible<Value>);

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
