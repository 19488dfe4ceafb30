// SPDX-License-Identifier: Apache-2.0
// Gradients that are inf or NaN.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/comm/group.hpp"
#include "accelerate/state/piece.hpp"

namespace accelerate::gradient {

/// Whether any element of them is inf or NaN.
///
/// gradients   dense, of any dtypes and devices
/// over        the ranks of a group have a part of the gradients each: whether any has such an element, by one
///             all-reduce of one number. All ranks of it call then. Null: these are all.
/// returns     0-dim float32 on the device of the first gradient: 1 where there is one, else 0; no host wait
at::Tensor non_finite_in(const std::vector<at::Tensor>& gradients, const comm::Group* over = nullptr);

/// Throws Error (data) where the norm of the pieces' gradients is inf or NaN; it names the first parameter whose
/// gradient has such an element, and how many have. Waits for the device.
///
/// norm   as norm_of() gives it
void require_finite(const at::Tensor& norm, std::span<state::Piece> pieces, const Place& place);

}  // namespace accelerate::gradient
