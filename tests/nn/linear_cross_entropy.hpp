// SPDX-License-Identifier: Apache-2.0
// Common code of the linear_cross_entropy tests: one problem, its options, and the same loss by LibTorch's functions.
#pragma once

#include "tests/nn/support.hpp"
//
#include <string>

#include "accelerate/nn/linear_cross_entropy.hpp"

namespace nn_testing {

using accelerate::nn::linear_cross_entropy;
using accelerate::nn::LinearCrossEntropyOptions;
using accelerate::nn::Reduction;

inline std::string describe_loss(const LinearCrossEntropyOptions& options) {
  return "reduction " + std::to_string(static_cast<int>(options.reduction)) + ", ignore_index " +
         std::to_string(options.ignore_index) + ", label_smoothing " + std::to_string(options.label_smoothing) +
         (options.class_weights.defined() ? ", class weights" : "") + (options.bias.defined() ? ", bias" : "") +
         ", max_bytes " + std::to_string(options.max_bytes);
}

/// Leaves of a problem: rows of the given leading shape, 11 classes, so that rows of logits are padded to 16.
struct LossProblem {
  static constexpr int64_t kFeatures = 6, kClasses = 11, kRowStride = 16;

  explicit LossProblem(const std::vector<int64_t>& leading, at::ScalarType dtype = at::kDouble) {
    std::vector<int64_t> shape = leading;
    shape.push_back(kFeatures);
    x = numbers(shape, 1).to(dtype).requires_grad_(true);
    weight = numbers({kClasses, kFeatures}, 2).to(dtype).requires_grad_(true);
    bias = numbers({kClasses}, 3).to(dtype).requires_grad_(true);
    class_weights = numbers({kClasses}, 4).abs() + 0.25;
    target = (numbers(leading, 5).abs() * 1000).to(at::kLong).remainder(kClasses);
  }
  [[nodiscard]] std::vector<at::Tensor> leaves() const { return {x, weight, bias}; }

  at::Tensor x, weight, bias, class_weights, target;
};

/// cross_entropy(linear(...)) of LibTorch; the losses in the shape of the target.
inline at::Tensor stock_loss(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& target,
                             const LinearCrossEntropyOptions& options) {
  namespace F = torch::nn::functional;
  F::CrossEntropyFuncOptions theirs;
  theirs.ignore_index(options.ignore_index).label_smoothing(options.label_smoothing).weight(options.class_weights);
  if (options.reduction == Reduction::mean) theirs.reduction(torch::kMean);
  if (options.reduction == Reduction::sum) theirs.reduction(torch::kSum);
  if (options.reduction == Reduction::none) theirs.reduction(torch::kNone);
  const at::Tensor logits = torch::linear(x, weight, options.bias).reshape({target.numel(), weight.size(0)});
  const at::Tensor loss = F::cross_entropy(logits, target.reshape({target.numel()}), theirs);
  return options.reduction == Reduction::none ? loss.reshape(target.sizes()) : loss;
}

/// Gradients of the leaves after (loss * upstream).sum().backward(); undefined for leaves that have none.
inline std::vector<at::Tensor> loss_gradients(const at::Tensor& loss, const std::vector<at::Tensor>& leaves,
                                              const at::Tensor& upstream) {
  for (const at::Tensor& leaf : leaves) leaf.mutable_grad() = at::Tensor();
  (loss * upstream).sum().backward();
  std::vector<at::Tensor> all;
  for (const at::Tensor& leaf : leaves) all.push_back(leaf.grad());
  return all;
}

/// Every combination of options, with and without chunks of two rows.
inline std::vector<LinearCrossEntropyOptions> all_loss_options(const LossProblem& problem, int64_t first_class) {
  std::vector<LinearCrossEntropyOptions> all;
  for (const auto reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
    for (const int64_t ignore_index : {int64_t{-100}, first_class}) {
      for (const double label_smoothing : {0.0, 0.3, 1.0}) {
        for (const bool weighted : {false, true}) {
          for (const bool biased : {false, true}) {
            for (const int64_t max_bytes : {int64_t{1} << 20, 2 * LossProblem::kRowStride * int64_t{8}}) {
              all.push_back({.bias = biased ? problem.bias : at::Tensor(),
                             .class_weights = weighted ? problem.class_weights : at::Tensor(),
                             .ignore_index = ignore_index,
                             .label_smoothing = label_smoothing,
                             .reduction = reduction,
                             .max_bytes = max_bytes});
            }
          }
        }
      }
    }
  }
  return all;
}

}  // namespace nn_testing
