// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tensor_parallel/conv.hpp"

#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <torch/nn/functional/conv.h>

#include <ostream>
#include <string_view>
#include <utility>
#include <variant>

#include "accelerate/base/error.hpp"
#include "accelerate/tensor_parallel/collectives.hpp"
#include "accelerate/tensor_parallel/group_functions.hpp"
#include "accelerate/tensor_parallel/split_conv.hpp"

namespace accelerate::nn {
namespace {

constexpr std::string_view kColumnConv = "column_parallel_conv2d";
constexpr std::string_view kRowConv = "row_parallel_conv2d";

const ParameterSplit kOutChannels{.name = "weight", .dim = 0};
const ParameterSplit kInChannels{.name = "weight", .dim = 1};
const ParameterSplit kPartOfConvBias{.name = "bias", .dim = 0};

/// The options of a layer of LibTorch in the type of its constructor.
torch::nn::Conv2dOptions options_of_conv(const torch::nn::Conv2dImpl& whole) {
  const auto& given = whole.options;
  return torch::nn::Conv2dOptions(given.in_channels(), given.out_channels(), given.kernel_size())
      .stride(given.stride())
      .padding(given.padding())
      .dilation(given.dilation())
      .groups(given.groups())
      .bias(given.bias())
      .padding_mode(given.padding_mode());
}

void check_conv(std::string_view call, const torch::nn::Conv2dOptions& options, const comm::Group& group) {
  if (options.groups() != 1) {
    base::fail(ErrorKind::usage, group.place(), call, "groups is {}, must be 1", options.groups());
  }
  if (!std::holds_alternative<torch::enumtype::kZeros>(options.padding_mode())) {
    base::fail(ErrorKind::usage, group.place(), call, "padding_mode must be zeros");
  }
}

/// The channels are checked before any collective, because a rank that fails alone blocks the others.
void check_channels(std::string_view call, const at::Tensor& input, int64_t channels, const comm::Group& group) {
  const bool has_channels = input.dim() == 3 || input.dim() == 4;
  if (has_channels && input.size(-3) == channels) return;
  base::fail(ErrorKind::usage, group.place(), call, "the input is [{}], must be [N, {}, H, W] or [{}, H, W]",
             c10::Join(", ", input.sizes()), channels, channels);
}

}  // namespace

at::Tensor ParallelConv2dBase::convolve(const at::Tensor& input, const at::Tensor& the_bias) const {
  return torch::nn::functional::detail::conv2d(input, weight, the_bias, options.stride(), options.padding(),
                                               options.dilation(), /*groups=*/1);
}

void ParallelConv2dBase::print(std::ostream& stream, const char* name) const {
  stream << fmt::format("accelerate::nn::{}({}, {}, kernel_size=[{}], stride=[{}], bias={}, ranks={})", name,
                        options.in_channels(), options.out_channels(),
                        c10::Join(", ", at::ArrayRef<int64_t>(*options.kernel_size())),
                        c10::Join(", ", at::ArrayRef<int64_t>(*options.stride())), options.bias(), group().size());
}

ColumnParallelConv2dImpl::ColumnParallelConv2dImpl(const torch::nn::Conv2dOptions& the_options, comm::Group group)
    : ParallelConv2dBase(the_options, std::move(group)) {
  ColumnParallelConv2dImpl::reset();
}

ColumnParallelConv2dImpl::ColumnParallelConv2dImpl(const torch::nn::Conv2dImpl& whole, comm::Group group)
    : ParallelConv2dBase(options_of_conv(whole), std::move(group)) {
  take(whole);
  train(whole.is_training());
}

void ColumnParallelConv2dImpl::reset() { take(torch::nn::Conv2dImpl(options)); }

void ColumnParallelConv2dImpl::take(const torch::nn::Conv2dImpl& whole) {
  check_conv(kColumnConv, options, group());
  part_size(kColumnConv, "out_channels", options.out_channels(), group());
  weight = register_parameter("weight", part(whole.weight, kOutChannels), learns(whole.weight));
  bias = register_parameter("bias", part(whole.bias, kPartOfConvBias), learns(whole.bias));
}

std::vector<ParameterSplit> ColumnParallelConv2dImpl::parameter_splits() const {
  return {kOutChannels, kPartOfConvBias};
}

at::Tensor ColumnParallelConv2dImpl::forward(const at::Tensor& input) {
  check_channels(kColumnConv, input, options.in_channels(), group());
  // LibTorch has no separate gradients of a complex convolution.
  if (group().size() == 1 || input.is_complex()) return convolve(copy_to_group(input, group()), bias);
  return split_conv2d(input, weight, bias, options, group());
}

void ColumnParallelConv2dImpl::pretty_print(std::ostream& stream) const { print(stream, "ColumnParallelConv2d"); }

RowParallelConv2dImpl::RowParallelConv2dImpl(const torch::nn::Conv2dOptions& the_options, comm::Group group)
    : ParallelConv2dBase(the_options, std::move(group)) {
  RowParallelConv2dImpl::reset();
}

RowParallelConv2dImpl::RowParallelConv2dImpl(const torch::nn::Conv2dImpl& whole, comm::Group group)
    : ParallelConv2dBase(options_of_conv(whole), std::move(group)) {
  take(whole);
  train(whole.is_training());
}

void RowParallelConv2dImpl::reset() { take(torch::nn::Conv2dImpl(options)); }

void RowParallelConv2dImpl::take(const torch::nn::Conv2dImpl& whole) {
  check_conv(kRowConv, options, group());
  part_size(kRowConv, "in_channels", options.in_channels(), group());
  weight = register_parameter("weight", part(whole.weight, kInChannels), learns(whole.weight));
  bias = register_parameter("bias", copy_of(whole.bias), learns(whole.bias));
}

std::vector<ParameterSplit> RowParallelConv2dImpl::parameter_splits() const { return {kInChannels}; }

at::Tensor RowParallelConv2dImpl::forward(const at::Tensor& input) {
  check_channels(kRowConv, input, weight.size(1), group());
  const at::Tensor sum = reduce_from_group(convolve(input, {}), group());
  return bias.defined() ? sum + bias.view({-1, 1, 1}).to(sum.scalar_type()) : sum;
}

void RowParallelConv2dImpl::pretty_print(std::ostream& stream) const { print(stream, "RowParallelConv2d"); }

}  // namespace accelerate::nn
