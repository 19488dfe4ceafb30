// SPDX-License-Identifier: Apache-2.0
// Dropout in a region that is split over the ranks of a tensor parallel group.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <iosfwd>

#include "accelerate/comm/group.hpp"

namespace accelerate::nn {

/// Dropout of this rank's part of a tensor: every rank draws another mask, and the default generators of the ranks stay
/// equal. torch::nn::Dropout draws the same mask on all ranks, as a tensor that is equal on all ranks needs.
///
/// The function draws one number of the default CPU generator, in which the ranks of the group must agree (equal
/// seeds), and mixes it with the rank. Checkpointed random states and recomputed activations thus repeat the masks. In
/// a group of one rank it is torch::dropout.
///
/// \param p  Probability of a zero, 0 to 1.
/// \throws Error (usage) for another p.
/// \note A captured step (Graph) would repeat one mask, because the host draws the number.
at::Tensor parallel_dropout(const at::Tensor& input, double p, bool train, const comm::Group& group);

/// parallel_dropout() as a layer. Not thread-safe.
class ParallelDropoutImpl : public torch::nn::Cloneable<ParallelDropoutImpl> {
 public:
  /// \throws Error (usage) if p is not from 0 to 1.
  ParallelDropoutImpl(double p, comm::Group group);
  at::Tensor forward(const at::Tensor& input);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

 private:
  double p_;
  comm::Group group_;
};

/// `accelerate::nn::ParallelDropout dropout(0.1, group);`
TORCH_MODULE(ParallelDropout);

}  // namespace accelerate::nn
