// SPDX-License-Identifier: Apache-2.0
// Batch normalisation over the batches of all ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <iosfwd>
#include <memory>

#include "accelerate/comm/group.hpp"

namespace accelerate::nn {

/// BatchNorm1d, 2d and 3d with common statistics of all ranks' batches: N ranks with batches of B train like one rank
/// with a batch of N*B. Options, parameters, buffers and their names are those of the LibTorch layers.
///
/// Statistics span several ranks once the layer is connected: by prepare() of its model, by convert_sync_batchnorm(),
/// or with the group given here. Until then, on one rank and in evaluation it behaves like the LibTorch layer.
///
/// In training all ranks must call forward, and run backward through it, equally often and in the same order as their
/// other layers of that group: one all-gather of 2C + 1 numbers in forward, one all-reduce of 2C in backward. Batches
/// may differ in size between ranks and be empty on some. Statistics are float32 for half, bfloat16 and float32 inputs,
/// float64 for float64. A forward that checkpoint() runs again does not update the running statistics.
///
/// Gradients of weight and bias are this rank's sums, and the gradient reducer averages them, as in PyTorch. Second
/// derivatives through several ranks are an error. Not thread-safe.
class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  /// \param group  For exclusive use by such layers: pass Group::duplicate().
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, comm::Group group = {});

  /// \param input  [N, C, ...] with C = num_features and at least 2 dimensions.
  /// \returns the same shape, dtype and memory format.
  /// \throws Error (usage) for another shape, and if all ranks together have fewer than 2 values per channel.
  at::Tensor forward(const at::Tensor& input);

  void reset() override;
  void reset_parameters();
  void reset_running_stats();
  void pretty_print(std::ostream& stream) const override;

  /// True if it has a group that is not default-constructed.
  [[nodiscard]] bool connected() const;
  void connect(comm::Group group);
  [[nodiscard]] const comm::Group& group() const { return group_; }

  torch::nn::BatchNormOptions options;
  at::Tensor weight, bias;  ///< [C]; undefined without affine
  /// [C], [C], 0-dim int64; undefined without track_running_stats.
  at::Tensor running_mean, running_var, num_batches_tracked;

 private:
  friend std::shared_ptr<SyncBatchNormImpl> synchronised(const torch::nn::Module& stock);
  struct AdoptParameters {};  // registers the tensors of a LibTorch layer instead of creating new ones
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, AdoptParameters);
  template <typename Stock>
  static std::shared_ptr<SyncBatchNormImpl> adopt(const Stock* stock);

  void check_input(const at::Tensor& input) const;
  double count_batch();
  at::Tensor reduce_over_ranks(const at::Tensor& input, double factor);

  comm::Group group_;
};

/// `accelerate::nn::SyncBatchNorm norm(torch::nn::BatchNormOptions(64).eps(1e-3));`
TORCH_MODULE(SyncBatchNorm);

/// An unconnected layer that shares options, parameters, buffers and mode with a BatchNorm1d, 2d or 3d of LibTorch.
/// Null for any other module, including classes derived from those three.
std::shared_ptr<SyncBatchNormImpl> synchronised(const torch::nn::Module& stock);

}  // namespace accelerate::nn
