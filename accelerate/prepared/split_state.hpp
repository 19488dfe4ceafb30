// SPDX-License-Identifier: Apache-2.0
// Private: files contain whole tensors. Joins the parts of tensor parallel layers for them, and takes this rank's parts
// from loaded tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/checkpoint/checkpoint_content.hpp"
#include "accelerate/prepared/accelerator_state.hpp"
#include "accelerate/prepared/custom_state.hpp"
#include "accelerate/state/optimizer_state.hpp"
#include "accelerate/state/saved_elements.hpp"

namespace accelerate::prepared {

class ModelCore;
class OptimizerCore;

/// Joins parts by all-gathers over the tensor parallel group, one tensor at a time. All ranks of the group must join
/// the same tensors in the same order.
class PartJoiner {
 public:
  /// \param keeps  If true, whole tensors are kept, in the memory of the host; otherwise empty tensors replace them.
  PartJoiner(const AcceleratorState& shared, bool keeps) : group_(shared.mesh.tensor), keeps_(keeps) {}

  /// Replaces the parts among these tensors. A tensor that is listed twice is joined once. Collective.
  void join(checkpoint::NamedTensors& tensors);
  /// Replaces the tensors of an optimizer's state that have the shape of a split parameter. Collective.
  void join(const OptimizerCore& optimizer, state::OptimizerState& state);
  /// Replaces the tensors of a registered object that have the shape of a split parameter. Collective.
  void join(const CustomObject& object, checkpoint::CustomState& state);
  /// Returns the whole tensor of a part, or of a tensor of the same shape, such as a master. Collective.
  at::Tensor whole(const at::Tensor& parameter, const at::Tensor& part);

 private:
  const comm::Group& group_;
  bool keeps_;
  std::unordered_map<const void*, at::Tensor> joined_{};  // by TensorImpl of the part
};

/// Joins everything that a checkpoint contains. Does nothing without split parameters. Collective over the tensor
/// parallel groups.
/// \param keeps  True on ranks that write the common files.
void join_parts(AcceleratorState& shared, const std::vector<CustomObject>& customs,
                checkpoint::CheckpointContent& content, bool keeps);

/// \throws Error (usage) on all ranks of a tensor parallel group if a tensor of a registered object differs between
///         them and belongs to no parameter, because a checkpoint contains one tensor of each name. Does nothing
///         without split parameters. Collective over the tensor parallel groups.
void check_equal_in_tensor_group(AcceleratorState& shared, const std::vector<CustomObject>& customs,
                                 const checkpoint::CheckpointContent& content);

/// \throws Error (usage) if a model with tensor parallel layers has a state that cannot be joined: gradients of an open
///         accumulation window, a communication hook with a state, an optimizer that saves by itself. Local.
void check_can_be_joined(AcceleratorState& shared, const checkpoint::CheckpointContent& content);

/// Returns a tensor on the meta device with the shape of the whole tensor; `parameter` itself if it is not split.
[[nodiscard]] at::Tensor whole_shape_of(const at::Tensor& parameter);
/// Returns this rank's part of a saved tensor; `saved` itself if the parameter is not split.
[[nodiscard]] at::Tensor own_part_of(const at::Tensor& parameter, const at::Tensor& saved,
                                     const state::ReadElements& read);
/// Replaces the whole tensors of split parameters by this rank's parts.
void take_own_parts(const OptimizerCore& optimizer, state::OptimizerState& saved, const state::ReadElements& read);
/// The same for the tensors of a registered object.
/// \throws Error (data) if a tensor is only one rank's part, because the object could not name its parameters when the
///         checkpoint was written.
void take_own_parts(const CustomObject& object, checkpoint::CustomState& saved, const state::ReadElements& read,
                    const RankContext& place);

}  // namespace accelerate::prepared
