// SPDX-License-Identifier: Apache-2.0
// LibTorch's process-wide modes of computation.
#pragma once

#include <optional>

#include "accelerate/env/precision.hpp"

namespace accelerate::device {

/// Sets the precision of float32 matrix products and cuDNN's benchmark mode for the whole process. An unset value is
/// not changed, and neither is a mode that has the requested value.
///
/// Concurrent calls are serialised. LibTorch reads the modes without a lock, so no operator may run in another thread
/// while a mode changes.
void set_math_modes(const std::optional<env::Float32MatmulPrecision>& float32_matmul_precision,
                    const std::optional<bool>& cudnn_benchmark);

}  // namespace accelerate::device
