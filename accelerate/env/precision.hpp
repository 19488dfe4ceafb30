// SPDX-License-Identifier: Apache-2.0
// What a program computes in, by name.
#pragma once

#include <array>
#include <string_view>
#include <utility>

namespace accelerate::env {

/// Dtype of forward and backward; parameters and optimizers stay in float32.
enum class Precision {
  no,    ///< everything as it is
  bf16,  ///< bfloat16: float32's range, 8 bits of precision
  fp16,  ///< float16: 11 bits of precision, a small range, so that the loss is scaled
};

inline constexpr std::array<std::pair<Precision, std::string_view>, 3> kPrecisions{
    {{Precision::no, "no"}, {Precision::bf16, "bf16"}, {Precision::fp16, "fp16"}}};

[[nodiscard]] constexpr std::string_view name(Precision precision) {
  return kPrecisions.at(static_cast<size_t>(precision)).second;
}

}  // namespace accelerate::env
