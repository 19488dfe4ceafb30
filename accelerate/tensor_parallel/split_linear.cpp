// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tensor_parallel/split_linear.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/linear.h>

#include <optional>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/tensor_parallel/autocast_argument.hpp"
#include "accelerate/tensor_parallel/collectives.hpp"
#include "accelerate/tensor_parallel/group_holder.hpp"

namespace accelerate::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Returns the tensor as [rows, features].
at::Tensor as_rows(const at::Tensor& tensor) {
  const int64_t features = tensor.size(-1);
  int64_t rows = 1;
  for (int64_t dim = 0; dim + 1 < tensor.dim(); ++dim) rows *= tensor.size(dim);
  return tensor.reshape({rows, features});
}

/// Returns rows of a new tensor in the shape of `like`, with other features. The result is no view, because a view
/// cannot be the result of an autograd function and be modified in place later.
at::Tensor rows_like(const at::Tensor& rows, const at::Tensor& like) {
  std::vector<int64_t> sizes = like.sizes().vec();
  sizes.back() = rows.size(1);
  return at::_unsafe_view(rows, sizes);
}

/// A reduction of the input's gradient that runs beside other work.
class InputGradient {
 public:
  InputGradient(const at::Tensor& gradient, LinearSplit split, int64_t sequence_dim, const comm::Group& group)
      : gradient_(gradient), group_(group) {
    if (split == LinearSplit::column && group.size() > 1) pending_ = group.all_reduce_async(gradient);
    if (split == LinearSplit::column_sequence) part_.emplace(gradient, sequence_dim, group);
  }
  at::Tensor wait() {
    if (part_) return part_->wait();
    wait_for(pending_, group_);
    return gradient_;
  }

 private:
  at::Tensor gradient_;
  const comm::Group& group_;
  comm::Pending pending_;
  std::optional<PartOfSum> part_;
};

struct SplitLinearFunction : torch::autograd::Function<SplitLinearFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& given, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, LinearSplit split, int64_t sequence_dim,
                            const comm::Group& group) {
    const at::Tensor input = split == LinearSplit::column_sequence ? joined_parts(given, sequence_dim, group) : given;
    context->save_for_backward({input, weight});
    context->saved_data["split"] = static_cast<int64_t>(split);
    context->saved_data["dim"] = sequence_dim;
    context->saved_data["bias"] = bias.has_value();
    save_group(*context, group);
    const at::Tensor output = rows_like(at::linear(as_rows(input), weight, bias), input);
    if (split == LinearSplit::row) add_up(output, group);
    return split == LinearSplit::row_sequence ? PartOfSum(output, sequence_dim, group).wait() : output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const comm::Group group = saved_group(*context);
    if (at::GradMode::is_enabled()) {
      base::fail(ErrorKind::usage, group.place(), "tensor_parallel",
                 "backward was called with create_graph, but split linear layers have no second derivative");
    }
    const auto split = static_cast<LinearSplit>(context->saved_data["split"].toInt());
    const int64_t dim = context->saved_data["dim"].toInt();
    const auto saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1];
    const at::Tensor rows =
        as_rows(split == LinearSplit::row_sequence ? joined_parts(gradients[0], dim, group) : gradients[0]);
    variable_list out(6);
    std::optional<InputGradient> reduction;
    if (context->needs_input_grad(0)) reduction.emplace(rows_like(rows.mm(weight), input), split, dim, group);
    if (context->needs_input_grad(1)) out[1] = rows.t().mm(as_rows(input));
    if (context->saved_data["bias"].toBool() && context->needs_input_grad(2)) out[2] = rows.sum(0);
    if (reduction) out[0] = reduction->wait();
    return out;
  }
};

}  // namespace

at::Tensor split_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, LinearSplit split,
                        int64_t sequence_dim, const comm::Group& group) {
  return SplitLinearFunction::apply(for_autocast(input), for_autocast(weight), optional_for_autocast(bias), split,
                                    sequence_dim, group);
}

}  // namespace accelerate::nn
