// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tensor_parallel/split_conv.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/convolution_backward.h>

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <variant>
#include <vector>

#include "accelerate/tensor_parallel/autocast_argument.hpp"
#include "accelerate/tensor_parallel/collectives.hpp"
#include "accelerate/tensor_parallel/group_functions.hpp"
#include "accelerate/tensor_parallel/group_holder.hpp"

namespace accelerate::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct ConvSteps {
  std::vector<int64_t> stride, padding, dilation;
};

struct SplitConvFunction : torch::autograd::Function<SplitConvFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const ConvSteps& steps, const comm::Group& group) {
    context->save_for_backward({input, weight});
    context->saved_data["stride"] = steps.stride;
    context->saved_data["padding"] = steps.padding;
    context->saved_data["dilation"] = steps.dilation;
    context->saved_data["bias"] = bias.has_value();
    save_group(*context, group);
    return at::conv2d(input, weight, bias, steps.stride, steps.padding, steps.dilation);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const comm::Group group = saved_group(*context);
    const auto saved = context->get_saved_variables();
    // The weight's gradient uses the input, so in a second derivative every rank adds its part to the input's gradient.
    const bool is_differentiated = at::GradMode::is_enabled();
    const at::Tensor input = is_differentiated ? copy_to_group(saved[0], group) : saved[0];
    const at::Tensor& weight = saved[1];
    const std::vector<int64_t> bias_sizes{weight.size(0)};
    const auto compute = [&](std::array<bool, 3> mask) {
      return at::convolution_backward(gradients[0], input, weight, bias_sizes,
                                      context->saved_data["stride"].toIntVector(),
                                      context->saved_data["padding"].toIntVector(),
                                      context->saved_data["dilation"].toIntVector(), /*transposed=*/false,
                                      /*output_padding=*/{0, 0}, /*groups=*/1, mask);
    };
    const bool of_input = context->needs_input_grad(0), of_weight = context->needs_input_grad(1),
               of_bias = context->saved_data["bias"].toBool() && context->needs_input_grad(2);
    variable_list out(5);
    if (is_differentiated) {
      std::tie(out[0], out[1], out[2]) = compute({of_input, of_weight, of_bias});
      if (of_input) out[0] = reduce_from_group(out[0], group);
      return out;
    }
    comm::Pending reduction;
    if (of_input) {
      out[0] = std::get<0>(compute({true, false, false}));
      reduction = group.all_reduce_async(out[0]);
    }
    if (of_weight || of_bias) std::tie(std::ignore, out[1], out[2]) = compute({false, of_weight, of_bias});
    if (of_input) wait_for(reduction, group);
    return out;
  }
};

/// Like LibTorch, pads the larger side beforehand if the padding "same" has two different sides.
std::vector<int64_t> padding_of(const torch::nn::Conv2dOptions& options, at::Tensor& input) {
  if (const auto* numbers = std::get_if<torch::ExpandingArray<2>>(&options.padding())) {
    return {(*numbers)->begin(), (*numbers)->end()};
  }
  std::vector<int64_t> padding{0, 0};
  if (std::holds_alternative<torch::enumtype::kValid>(options.padding())) return padding;
  std::array<int64_t, 2> more{};
  for (size_t i = 0; i < 2; ++i) {
    const int64_t total = (*options.dilation())[i] * ((*options.kernel_size())[i] - 1);
    padding[i] = total / 2;
    more[i] = total % 2;
  }
  if (more[0] + more[1] > 0) input = at::constant_pad_nd(input, {0, more[1], 0, more[0]});
  return padding;
}

}  // namespace

at::Tensor split_conv2d(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                        const torch::nn::Conv2dOptions& options, const comm::Group& group) {
  const bool has_batch = input.dim() == 4;
  at::Tensor batch = has_batch ? input : input.unsqueeze(0);
  ConvSteps steps{.stride = {options.stride()->begin(), options.stride()->end()},
                  .padding = padding_of(options, batch),
                  .dilation = {options.dilation()->begin(), options.dilation()->end()}};
  const at::Tensor output =
      SplitConvFunction::apply(for_autocast(batch), for_autocast(weight), optional_for_autocast(bias), steps, group);
  return has_batch ? output : output.squeeze(0);
}

}  // namespace accelerate::nn
