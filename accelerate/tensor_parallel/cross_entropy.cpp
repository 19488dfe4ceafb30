// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tensor_parallel/cross_entropy.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/custom_function.h>

#include <string_view>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/comm/error_context.hpp"
#include "accelerate/tensor_parallel/collectives.hpp"
#include "accelerate/tensor_parallel/split_linear.hpp"
#include "accelerate/tensor_parallel/vocabulary.hpp"

namespace accelerate::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::string_view kLoss = "vocab_parallel_cross_entropy";

template <typename... Args>
[[noreturn]] void refuse_split_loss(const comm::Group& group, fmt::format_string<Args...> format, Args&&... args) {
  base::fail(ErrorKind::usage, group.place(), kLoss, format, std::forward<Args>(args)...);
}

void check_loss(const at::Tensor& logits, const at::Tensor& target, const comm::Group& group,
                const VocabParallelCrossEntropyOptions& options) {
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1)) {
    refuse_split_loss(group, "label_smoothing is {}, must be from 0 to 1", options.label_smoothing);
  }
  if (logits.dim() == 0 || !logits.is_floating_point()) {
    refuse_split_loss(group, "the logits are {} [{}], must be floating point [..., classes / P]",
                      c10::toString(logits.scalar_type()), c10::Join(", ", logits.sizes()));
  }
  if (target.scalar_type() != at::kLong) {
    refuse_split_loss(group, "target is {}, must be Long", c10::toString(target.scalar_type()));
  }
  if (target.sizes() != logits.sizes().slice(0, static_cast<size_t>(logits.dim() - 1))) {
    refuse_split_loss(group, "target is [{}] and the logits [{}]; target must have one class for each row",
                      c10::Join(", ", target.sizes()), c10::Join(", ", logits.sizes()));
  }
}

/// Losses of rows, [N], from this rank's classes.
struct RowLossFunction : torch::autograd::Function<RowLossFunction> {
  /// \param logits   [N, V / P].
  /// \param index    [N] class of each row within this rank's part.
  /// \param outside  [N] bool: another rank has the class, or the row is ignored.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits, const at::Tensor& index,
                            const at::Tensor& outside, double smoothing, const comm::Group& group) {
    const auto dtype = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor z = logits.to(dtype, /*non_blocking=*/false, /*copy=*/true);
    const at::Tensor largest = z.amax(1);
    reduce(largest, comm::ReduceOp::max, group);
    z.sub_(largest.unsqueeze(1));
    std::vector<at::Tensor> parts{{}, z.gather(1, index.unsqueeze(1)).squeeze(1).masked_fill(outside, 0)};
    if (smoothing > 0) parts.push_back(z.sum(1));
    parts[0] = z.exp_().sum(1);
    const at::Tensor sums = at::stack(parts);
    reduce(sums, comm::ReduceOp::sum, group);
    const auto classes = static_cast<double>(logits.size(1) * group.size());
    const at::Tensor log_sum = sums[0].log();
    at::Tensor losses = (log_sum - sums[1]) * (1 - smoothing);
    if (smoothing > 0) losses += (log_sum - sums[2] / classes) * smoothing;
    context->save_for_backward({z.div_(sums[0].unsqueeze(1)), index, outside});
    context->saved_data["smoothing"] = smoothing;
    context->saved_data["classes"] = classes;
    context->saved_data["dtype"] = logits.scalar_type();
    return losses;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    if (at::GradMode::is_enabled()) {
      base::fail(ErrorKind::usage, {}, kLoss,
                 "backward was called with create_graph, but this function has no second derivative");
    }
    const auto saved = context->get_saved_variables();
    const at::Tensor &softmax = saved[0], &index = saved[1], &outside = saved[2];
    const double smoothing = context->saved_data["smoothing"].toDouble();
    const at::Tensor rows = gradients[0].unsqueeze(1);
    const at::Tensor gradient = softmax * rows;
    gradient.scatter_add_(1, index.unsqueeze(1), (rows * (smoothing - 1)).masked_fill(outside.unsqueeze(1), 0));
    if (smoothing > 0) gradient.sub_(rows * (smoothing / context->saved_data["classes"].toDouble()));
    variable_list out(5);
    out[0] = gradient.to(context->saved_data["dtype"].toScalarType());
    return out;
  }

 private:
  static void reduce(const at::Tensor& tensor, comm::ReduceOp op, const comm::Group& group) {
    if (group.size() == 1) return;
    comm::with_operation_context(kLoss, "the sums of the classes are not put together", group.place(),
                                 [&] { group.all_reduce(tensor, op); });
  }
};

}  // namespace

at::Tensor vocab_parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& target, const comm::Group& group,
                                        const VocabParallelCrossEntropyOptions& options) {
  check_loss(logits, target, group, options);
  const int64_t part = logits.size(-1);
  const at::Tensor flat = target.reshape({target.numel()});
  const at::Tensor ignored = flat == options.ignore_index;
  check_indices(kLoss, flat, ignored, part * group.size(), group);
  const PartIndices own = in_part(flat, part, group);
  at::Tensor losses = RowLossFunction::apply(logits.reshape({target.numel(), part}), own.index,
                                             at::logical_or(own.outside, ignored), options.label_smoothing, group);
  losses = losses.masked_fill(ignored, 0);
  if (options.reduction == Reduction::none) return losses.reshape(target.sizes());
  if (options.reduction == Reduction::sum) return losses.sum();
  return losses.sum() / ignored.logical_not().sum();
}

at::Tensor vocab_parallel_linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& target,
                                               const comm::Group& group,
                                               const VocabParallelCrossEntropyOptions& options) {
  if (weight.dim() != 2 || x.dim() == 0 || x.size(-1) != weight.size(1)) {
    refuse_split_loss(group, "x is [{}] and weight [{}]; the last dimension of both must be the features",
                      c10::Join(", ", x.sizes()), c10::Join(", ", weight.sizes()));
  }
  return vocab_parallel_cross_entropy(split_linear(x, weight, {}, LinearSplit::column, 0, group), target, group,
                                      options);
}

}  // namespace accelerate::nn
