// SPDX-License-Identifier: Apache-2.0
// Which dtypes a model is stored, computed and answered in.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>

#include "accelerate/base/error.hpp"
#include "accelerate/env/precision.hpp"

namespace accelerate::precision {

/// The dtypes of a prepared model. Unset everywhere: as the module has them.
struct Policy {
  /// The model's parameters and gradients. Below float32 the optimizer steps on float32 copies (master weights).
  std::optional<c10::ScalarType> parameter{};
  /// What autocast computes matrix products and convolutions in. float16 means that the loss is scaled.
  std::optional<c10::ScalarType> compute{};
  /// What float16 and bfloat16 outputs of the model are given back as.
  std::optional<c10::ScalarType> output{};

  [[nodiscard]] bool scales_loss() const { return compute == c10::ScalarType::Half; }
  bool operator==(const Policy&) const = default;
};

/// no: nothing; bf16 and fp16: float32 parameters as they are, autocast, float32 outputs.
[[nodiscard]] Policy policy_of(env::Precision precision);

/// bfloat16 parameters, gradients and forward with float32 master weights and outputs: half the memory of parameters
/// and gradients while backward runs.
[[nodiscard]] Policy pure_bf16();

/// What a device computes in, of float16 and bfloat16.
struct LowPrecision {
  bool autocast = true;  ///< LibTorch knows autocast for this type of device
  bool fp16 = true;
  bool bf16 = true;
};

/// Asks the device. CUDA: bfloat16 from compute capability 8.0 on.
[[nodiscard]] LowPrecision low_precision_of(c10::Device device);

/// Pure function. \throws Error (device) if the device does not support the policy, with the supported ones; Error
/// (usage) for invalid policies (float16 parameters, whose gradients cannot be unscaled; compute dtypes other than
/// float16 and bfloat16).
void check(const Policy& policy, c10::Device device, const LowPrecision& can, const Place& place);

}  // namespace accelerate::precision
