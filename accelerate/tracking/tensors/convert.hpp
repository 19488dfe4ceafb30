// SPDX-License-Identifier: Apache-2.0
// Tensors as trackers take them.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "accelerate/tracking/trackers.hpp"

namespace accelerate::tracking {

/// images   [N, C, H, W], [C, H, W] or [H, W] with C of 1 to 4 (grey, grey and alpha, RGB, RGBA); of bytes as they are,
///          of floating point from 0, black, to 1; what lies beyond is cut, NaN is black
/// Waits for the device where this rank has a tracker in a run.
/// Throws Error (usage), on every rank, for other shapes and dtypes.
void log_images(Trackers& trackers, const std::string& name, const at::Tensor& images, Step step, const Place& place);

/// values   any shape, floating point or integers
/// Waits for the device where this rank has a tracker in a run.
void log_histogram(Trackers& trackers, const std::string& name, const at::Tensor& values, Step step);

}  // namespace accelerate::tracking
