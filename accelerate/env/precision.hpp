// SPDX-License-Identifier: Apache-2.0
// Names of the compute precisions and of the precisions of float32 matrix products.
#pragma once

#include <array>
#include <string_view>
#include <utility>

namespace accelerate::env {

/// Dtype of forward and backward; parameters and optimizers stay in float32.
enum class Precision {
  no,    ///< no autocast
  bf16,  ///< bfloat16: float32's range, 8 bits of precision
  fp16,  ///< float16: 11 bits of precision and a small range, so the loss is scaled
};

inline constexpr std::array<std::pair<Precision, std::string_view>, 3> kPrecisions{
    {{Precision::no, "no"}, {Precision::bf16, "bf16"}, {Precision::fp16, "fp16"}}};

/// Precision of products of float32 matrices, with the names of torch.set_float32_matmul_precision().
enum class Float32MatmulPrecision {
  highest,  ///< float32
  high,     ///< TensorFloat32, or products of several bfloat16 numbers, where the device is faster with them
  medium,   ///< bfloat16 where the device is faster with it
};

inline constexpr std::array<std::pair<Float32MatmulPrecision, std::string_view>, 3> kFloat32MatmulPrecisions{
    {{Float32MatmulPrecision::highest, "highest"},
     {Float32MatmulPrecision::high, "high"},
     {Float32MatmulPrecision::medium, "medium"}}};

[[nodiscard]] constexpr std::string_view mixed_precision_name(Precision precision) {
  return kPrecisions.at(static_cast<size_t>(precision)).second;
}

}  // namespace accelerate::env
