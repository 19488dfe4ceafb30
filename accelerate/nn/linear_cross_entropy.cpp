// SPDX-License-Identifier: Apache-2.0
#include "accelerate/nn/linear_cross_entropy.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <limits>
#include <mutex>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/nn/cross_entropy_chunks.hpp"
#include "accelerate/nn/cross_entropy_kernel.hpp"
#include "accelerate/nn/linear_cross_entropy_checks.hpp"
#include "accelerate/nn/segment_graph.hpp"

namespace accelerate::nn {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

/// During its lifetime, operators neither record a graph nor convert dtypes.
class PlainArithmetic {
  at::NoGradGuard no_grad_;
  c10::impl::ExcludeDispatchKeyGuard no_autocast_{c10::autocast_dispatch_keyset};
};

/// Returns the largest class weight, by which the class weights are divided for fp16: the gradients of logits are at
/// most as large as they are. Undefined if they are not divided.
at::Tensor unit_of_class_weights(const LinearCrossEntropyOptions& options, at::ScalarType dtype) {
  const at::Tensor& weights = options.class_weights;
  if (dtype != at::kHalf || !weights.defined() || weights.numel() == 0) return {};
  return weights.abs().amax().to(at::kFloat).clamp_min(std::numeric_limits<float>::min());
}

/// \param unit   Divides the class weights, if defined.
/// \param dtype  Compute dtype: linear_dtype(x), which depends on autocast.
CrossEntropyProblem problem_of(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& target,
                               const LinearCrossEntropyOptions& options, at::ScalarType dtype, const at::Tensor& unit) {
  return {.x = x.reshape({target.numel(), x.size(-1)}),
          .weight = weight,
          .bias = options.bias,
          .target = target.reshape({target.numel()}),
          .class_weights = unit.defined() ? options.class_weights / unit : options.class_weights,
          .ignore_index = options.ignore_index,
          .label_smoothing = options.label_smoothing,
          .max_bytes = options.max_bytes,
          .compute_dtype = dtype,
          .loss_dtype = dtype == at::kDouble ? at::kDouble : at::kFloat,
          .kernel =
              fused_cross_entropy_requested(options.fused_kernel) ? cross_entropy_kernel(x.device(), dtype) : nullptr};
}

/// Result of a gradient in the dtype of its input. `owned` gradients may be scaled in place.
at::Tensor scaled(const at::Tensor& gradient, const at::Tensor& factor, at::ScalarType dtype, bool owned) {
  const at::Tensor wide = gradient.to(factor.scalar_type());  // a factor such as fp16's loss scale exceeds 2 bytes
  return (owned || !wide.is_same(gradient) ? wide.mul_(factor) : wide.mul(factor)).to(dtype);
}

/// Common parts of both nodes. Their inputs are x, weight and bias.
struct LossNode : torch::autograd::Node {
  std::vector<int64_t> x_shape;
  std::vector<at::ScalarType> dtypes;  ///< of the inputs
  bool released = false;

  LossNode(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias)
      : x_shape(x.sizes().vec()),
        dtypes{x.scalar_type(), weight.scalar_type(), bias.defined() ? bias.scalar_type() : weight.scalar_type()} {
    set_next_edges(torch::autograd::collect_next_edges(x, weight, bias));
  }
  [[nodiscard]] std::string name() const override { return "accelerate::nn::linear_cross_entropy"; }

  void check_backward() const {
    TORCH_CHECK(!released, torch::autograd::ERR_BACKWARD_TWICE);
    if (!at::GradMode::is_enabled()) return;
    base::fail(ErrorKind::usage, {}, "linear_cross_entropy",
               "backward was called with create_graph, but this function has no second derivative; use "
               "cross_entropy_loss(linear(x, weight)) for it");
  }
  [[nodiscard]] WantedGradients wanted() const {
    return {.x = task_should_compute_output(0),
            .weight = task_should_compute_output(1),
            .bias = task_should_compute_output(2)};
  }
  /// Scales the wanted gradients to results for x, weight and bias.
  [[nodiscard]] variable_list results(const CrossEntropyGradients& gradients, const at::Tensor& factor,
                                      bool owned) const {
    variable_list all(3);
    const auto want = wanted();
    if (want.x) all[0] = scaled(gradients.x, factor, dtypes[0], owned).view(x_shape);
    if (want.weight) all[1] = scaled(gradients.weight, factor, dtypes[1], owned);
    if (want.bias) all[2] = scaled(gradients.bias, factor, dtypes[2], owned);
    return all;
  }
};

/// Backward of a mean or sum: scales the gradients that the forward computed.
struct ScalarLossNode : LossNode {
  using LossNode::LossNode;
  SavedVariable weight;  ///< only its version is used
  CrossEntropyGradients gradients;
  at::Tensor factor;  ///< [] from the sum of the losses to the result

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    released = true;
    weight.reset_data();
    gradients = {};
  }

 protected:
  variable_list apply(variable_list&& upstream) override {
    const std::lock_guard lock(mutex_);
    check_backward();
    if (!upstream[0].defined()) return variable_list(3);
    const PlainArithmetic plain;
    if (task_should_compute_output(0)) (void)weight.unpack();
    const bool keep = torch::autograd::get_current_graph_task_keep_graph();
    // Without other references, the accumulator of a leaf keeps the gradient instead of a copy.
    const CrossEntropyGradients given = keep ? gradients : std::exchange(gradients, {});
    return results(given, upstream[0].to(factor.scalar_type()) * factor, !keep);
  }
};

/// Backward of one loss a row: computes the logits again, because each row has its own upstream gradient.
struct RowLossesNode : LossNode {
  using LossNode::LossNode;
  CrossEntropyProblem problem;  ///< without tensors
  at::Tensor unit;              ///< of the class weights; undefined for 1
  std::vector<SavedVariable> saved;

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    released = true;
    saved.clear();
  }
  void save(const CrossEntropyProblem& one, const at::Tensor& x) {
    for (const at::Tensor& tensor : {x, one.weight, one.bias, one.target, one.class_weights}) {
      saved.emplace_back(tensor, /*is_output=*/false);
    }
    problem = one;
    problem.x = problem.weight = problem.bias = problem.target = problem.class_weights = at::Tensor();
  }

 protected:
  variable_list apply(variable_list&& upstream) override {
    const std::lock_guard lock(mutex_);
    check_backward();
    if (!upstream[0].defined()) return variable_list(3);
    const PlainArithmetic plain;
    CrossEntropyProblem one = problem;
    one.target = saved[3].unpack();
    one.x = saved[0].unpack().reshape({one.target.numel(), x_shape.back()});
    one.weight = saved[1].unpack();
    one.bias = saved[2].unpack();
    one.class_weights = saved[4].unpack();
    at::Tensor each = upstream[0].reshape({one.target.numel()}).to(one.loss_dtype);
    if (unit.defined()) each = each * unit;
    // Factors within -1 to 1 keep fp16's gradients of logits in range; the common factor is applied to the results.
    const at::Tensor common = each.numel() == 0 ? at::ones({}, each.options())
                                                : each.abs().amax().clamp_min(std::numeric_limits<float>::min());
    const auto computed = cross_entropy_in_chunks(one, wanted(), each / common);
    return results(computed.gradients, common, /*owned=*/true);
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& target,
                                const LinearCrossEntropyOptions& options) {
  check_linear_cross_entropy(x, weight, target, options);
  const at::Tensor& bias = options.bias;
  WantedGradients wanted;
  if (at::GradMode::is_enabled()) {
    wanted = {.x = x.requires_grad(), .weight = weight.requires_grad(), .bias = bias.defined() && bias.requires_grad()};
  }
  const bool each = options.reduction == Reduction::none;
  CrossEntropyProblem problem;
  CrossEntropyResult computed;
  at::Tensor loss, factor, unit;
  const at::ScalarType dtype = linear_dtype(x);
  {
    const PlainArithmetic plain;
    unit = unit_of_class_weights(options, dtype);
    problem = problem_of(x, weight, target, options, dtype, unit);
    computed = cross_entropy_in_chunks(problem, each ? WantedGradients{} : wanted, {});
    loss = each ? at::_unsafe_view(computed.losses, target.sizes()) : computed.losses.sum();  // no view: it gets a node
    if (unit.defined() && options.reduction != Reduction::mean) loss = loss * unit;
    if (options.reduction == Reduction::mean) {
      loss = loss / computed.denominator;
      factor = computed.denominator.reciprocal().masked_fill(computed.denominator == 0, 0);  // all rows are ignored
    }
    if (options.reduction == Reduction::sum) factor = unit.defined() ? unit : at::ones_like(computed.denominator);
  }
  if (!wanted.any()) return loss;
  NodePtr node;
  if (each) {
    node = make_node<RowLossesNode>(x, weight, bias);
    static_cast<RowLossesNode&>(*node).save(problem, x);
    static_cast<RowLossesNode&>(*node).unit = unit;
  } else {
    node = make_node<ScalarLossNode>(x, weight, bias);
    auto& scalar = static_cast<ScalarLossNode&>(*node);
    if (wanted.x) scalar.weight = SavedVariable(weight, /*is_output=*/false);
    scalar.gradients = std::move(computed.gradients);
    scalar.factor = factor;
  }
  torch::autograd::set_history(loss, node);
  return loss;
}

}  // namespace accelerate::nn
