// SPDX-License-Identifier: Apache-2.0
// Dtypes of a model's parameters, computation and outputs.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>

#include "accelerate/base/error.hpp"
#include "accelerate/env/precision.hpp"

namespace accelerate::precision {

/// The dtypes of a prepared model. If a member is unset, the module's own dtype applies.
struct Policy {
  /// Dtype of parameters and gradients. Below float32 the optimizer steps on float32 copies (master weights).
  std::optional<c10::ScalarType> parameter{};
  /// Dtype of autocast for matrix products and convolutions. With float16 the loss is scaled.
  std::optional<c10::ScalarType> compute{};
  /// Dtype to which float16 and bfloat16 outputs of the model are cast.
  std::optional<c10::ScalarType> output{};

  [[nodiscard]] bool scales_loss() const { return compute == c10::ScalarType::Half; }
  bool operator==(const Policy&) const = default;
};

/// For `no`, nothing is set. For bf16 and fp16: unchanged float32 parameters, autocast, float32 outputs.
[[nodiscard]] Policy policy_of(env::Precision precision);

/// bfloat16 parameters, gradients and forward, with float32 master weights and outputs: half the memory of parameters
/// and gradients during backward.
[[nodiscard]] Policy pure_bf16();

/// Support of a device for float16 and bfloat16.
struct LowPrecision {
  bool autocast = true;  ///< true if LibTorch has autocast for this device type
  bool fp16 = true;
  bool bf16 = true;
};

/// Queries the device. CUDA supports bfloat16 from compute capability 8.0 on.
[[nodiscard]] LowPrecision low_precision_of(c10::Device device);

/// Pure function.
/// \throws Error (device) if the device does not support the policy, with the supported ones.
/// \throws Error (usage) for invalid policies (float16 parameters, because their gradients cannot be unscaled; compute
///         dtypes other than float16 and bfloat16).
void check_precision_policy(const Policy& policy, c10::Device device, const LowPrecision& can,
                            const RankContext& place);

}  // namespace accelerate::precision
