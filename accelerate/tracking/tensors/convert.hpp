// SPDX-License-Identifier: Apache-2.0
// Conversion of tensors to tracker values.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "accelerate/tracking/trackers.hpp"

namespace accelerate::tracking {

/// Waits for the device if this rank has a tracker in a run.
/// \param images  [N, C, H, W], [C, H, W] or [H, W] with C from 1 to 4 (grey, grey and alpha, RGB, RGBA). Bytes are
///   used unchanged. Floating-point values range from 0 (black) to 1 and are clamped; NaN is black.
/// \throws Error (usage), on every rank, for other shapes and dtypes.
void log_images(Trackers& trackers, const std::string& name, const at::Tensor& images, Step step,
                const RankContext& place);

/// Waits for the device if this rank has a tracker in a run.
/// \param values  Any shape, floating point or integers.
void log_histogram(Trackers& trackers, const std::string& name, const at::Tensor& values, Step step);

}  // namespace accelerate::tracking
