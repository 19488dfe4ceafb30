// SPDX-License-Identifier: Apache-2.0
// Gradient clipping of models with split layers.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "accelerate/comm/group.hpp"

namespace accelerate::nn {

/// Dense gradients of parts of split layers, and of parameters that are equal on all ranks of the group.
struct SplitGradients {
  std::vector<at::Tensor> parts{};
  std::vector<at::Tensor> whole{};
};

/// Returns the norm of clip_split_grad_norm_() without scaling. Collective over the group.
at::Tensor split_grad_norm(const std::vector<at::Tensor>& parameters, const comm::Group& group, double norm_type = 2.0);

/// torch::nn::utils::clip_grad_norm_ for a model with split layers: the norm counts each element of the whole model
/// once, and is equal on all ranks. One all-reduce of one number.
///
/// All ranks of the group must call it after their gradients are complete, with the parameters of the same model.
///
/// \param parameters  Parts of split layers of this group, and parameters that are equal on all ranks of the group.
/// \param max_norm    Gradients are scaled so that their common norm is at most max_norm.
/// \param group       Tensor parallel group.
/// \param norm_type   p of the p-norm, above 0; infinity for the largest absolute value.
/// \returns the norm before scaling, a 0-dim tensor.
/// \throws Error (usage) if max_norm is negative or NaN, or norm_type is not above 0.
at::Tensor clip_split_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, const comm::Group& group,
                                 double norm_type = 2.0);

/// The same functions for gradients.
/// \param over  If set, the ranks of this group have different elements of all gradients: a sharded model. Collective
///              over this group, too. If null, the gradients are complete.
at::Tensor split_grad_norm(const SplitGradients& gradients, const comm::Group& group, double norm_type = 2.0,
                           const comm::Group* over = nullptr);
at::Tensor clip_split_grad_norm_(const SplitGradients& gradients, double max_norm, const comm::Group& group,
                                 double norm_type = 2.0, const comm::Group* over = nullptr);

}  // namespace accelerate::nn
