// SPDX-License-Identifier: Apache-2.0
// Private: the total norm of gradients that are divided over ranks as shards, parts of layers or stages.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "accelerate/comm/group.hpp"
#include "accelerate/prepared/accelerator_state.hpp"
#include "accelerate/tensor_parallel/clip.hpp"

namespace accelerate::prepared {

class ModelCore;

/// Gradients of given parameters. Each element of the whole model counts once in their norm. Valid until the next
/// backward. The functions are collective over all groups that divide the parameters.
class ClippedGradients {
 public:
  /// \throws Error (usage) if some parameters are divided over ranks and others are whole.
  ClippedGradients(const AcceleratorState& shared, const std::vector<std::shared_ptr<ModelCore>>& models,
                   const std::vector<at::Tensor>& parameters);

  /// \returns the norm, a 0-dim tensor, equal on all ranks of the model; float64 over the stages of a pipeline.
  [[nodiscard]] at::Tensor norm(double norm_type) const;
  /// Returns true if the norm contains gradients of other ranks.
  [[nodiscard]] bool is_over_ranks() const { return over_ != nullptr || tensor_ != nullptr || stages_ != nullptr; }
  /// Scales the gradients so that their norm is at most max_norm.
  /// \returns the norm before clipping.
  at::Tensor clip(double max_norm, double norm_type) const;

 private:
  void take(const AcceleratorState& shared, const std::vector<std::shared_ptr<ModelCore>>& models,
            const std::vector<at::Tensor>& counted, bool is_split);

  nn::SplitGradients counted_{};         ///< only `whole` without parts of tensor parallel layers
  std::vector<at::Tensor> copies_{};     ///< gradients of tied parameters that another stage counts
  const comm::Group* tensor_ = nullptr;  ///< null if there are no parts of tensor parallel layers
  const comm::Group* over_ = nullptr;    ///< ranks with the other shards; null if gradients are not sharded
  const comm::Group* stages_ = nullptr;  ///< ranks with the other stages of a pipeline; null if there are none
};

}  // namespace accelerate::prepared
