// SPDX-License-Identifier: Apache-2.0
// The last linear layer of a classifier or language model and its cross-entropy in one function.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace accelerate::nn {

/// How the losses of all rows become the result, as in torch::nn::CrossEntropyLoss.
enum class Reduction {
  mean,  ///< sum divided by the number of rows that are not ignored, or by the sum of their class weights
  sum,
  none,  ///< one loss a row, in the shape of the target
};

struct LinearCrossEntropyOptions {
  /// Bias of the linear layer, [classes]. If undefined, no bias is added.
  at::Tensor bias{};
  /// Weight of each class in the loss, [classes], without gradient. If undefined, every class has the weight 1.
  at::Tensor class_weights{};
  /// Rows with this target have no loss and no gradient.
  int64_t ignore_index = -100;
  /// Part of the target's probability that is spread evenly over all classes, from 0 to 1.
  double label_smoothing = 0;
  Reduction reduction = Reduction::mean;
  /// Upper limit for the logits that exist at one time, in bytes. Larger logits are computed in chunks of rows, at
  /// least one row each. The default of 512 MiB keeps the matrix products efficient.
  int64_t max_bytes = int64_t{512} << 20;
  /// Whether one fused kernel replaces LibTorch's elementwise operators on an NVIDIA GPU for float32, bfloat16 and
  /// float16. If unset, the environment variable ACCELERATE_FUSED_CROSS_ENTROPY decides; otherwise false. The kernel
  /// has not run on a GPU yet: only its text was tested, on a CPU. NVRTC compiles it in about a second at the first
  /// call on a device, which should precede the capture of a graph, and the result is cached on disk. If the kernel
  /// cannot be loaded, one warning is logged and LibTorch's operators are used. A target that is not a class fails an
  /// assertion on the device, as with LibTorch's operators.
  std::optional<bool> fused_kernel{};
};

/// Returns cross_entropy(linear(x, weight, bias), target) without keeping the logits.
///
///   auto loss = accelerate::nn::linear_cross_entropy(hidden, embedding->weight, tokens);   // tied to the embedding
///
/// The logits of one chunk of rows exist once, in the dtype of the linear layer, and are replaced by their gradient.
/// The losses are computed in float32 (float64 for float64 inputs). For the reductions mean and sum, the gradients are
/// computed during the forward and scaled in backward; Reduction::none computes the logits again in backward. The
/// gradient of an input that requires none is not computed. Without gradients (NoGradGuard) nothing is kept.
///
/// Under autocast x, weight and bias are converted to autocast's dtype as for torch::linear. Weights of float32 then
/// receive a gradient that was summed over the chunks in float32.
///
/// \param x        Hidden states, [..., features], floating point, on any device.
/// \param weight   Weight of the linear layer, [classes, features]. It may be used elsewhere too (tied embeddings).
/// \param target   Class of each row, int64, in the shape of x without its last dimension.
/// \param options  See LinearCrossEntropyOptions.
/// \returns the loss, float32 or float64: a scalar, or the shape of target for Reduction::none. The mean is NaN and the
///          gradients are 0 if all rows are ignored or there is no row.
/// \throws Error (usage) if shapes, dtypes, devices or options do not fit, and on the CPU if a target is not a class;
///         Error (environment) if ACCELERATE_FUSED_CROSS_ENTROPY is not a boolean.
///         Other devices check targets by LibTorch's assertion, because reading them would block the host. Backward
///         throws for `create_graph`: there is no second derivative. It throws LibTorch's own error if weight was
///         modified in place since the forward and x requires a gradient.
/// \note Thread-safe. On a device the host does not block, and the result is ready when the current stream reaches it.
at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& target,
                                const LinearCrossEntropyOptions& options = {});

}  // namespace accelerate::nn
