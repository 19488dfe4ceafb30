// SPDX-License-Identifier: Apache-2.0
// Gradients that are inf or NaN.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "accelerate/base/error.hpp"
#include "accelerate/state/piece.hpp"

namespace accelerate::gradient {

/// Throws Error (data) where the norm of the pieces' gradients is inf or NaN; it names the first parameter whose
/// gradient has such an element, and how many have. Waits for the device.
///
/// norm   as norm_of() gives it
void require_finite(const at::Tensor& norm, std::span<state::Piece> pieces, const Place& place);

}  // namespace accelerate::gradient
