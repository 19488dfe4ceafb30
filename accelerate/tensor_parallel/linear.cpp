// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tensor_parallel/linear.hpp"

#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <ostream>
#include <string_view>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/tensor_parallel/collectives.hpp"
#include "accelerate/tensor_parallel/group_functions.hpp"
#include "accelerate/tensor_parallel/split_linear.hpp"

namespace accelerate::nn {
namespace {

constexpr std::string_view kColumn = "column_parallel_linear";
constexpr std::string_view kRow = "row_parallel_linear";

const ParameterSplit kRowsOfWeight{.name = "weight", .dim = 0};
const ParameterSplit kColumnsOfWeight{.name = "weight", .dim = 1};
const ParameterSplit kPartOfBias{.name = "bias", .dim = 0};

void check_features(std::string_view call, const at::Tensor& input, int64_t features, const comm::Group& group) {
  if (input.dim() > 0 && input.size(-1) == features) return;
  base::fail(ErrorKind::usage, group.place(), call, "the input is [{}], its last dimension must be {}",
             c10::Join(", ", input.sizes()), features);
}

/// Returns the dimension of the sequence from 0 to input.dim() - 2.
int64_t checked_sequence_dim(std::string_view call, const at::Tensor& input, int64_t dim, const comm::Group& group) {
  const int64_t number = checked_dim(call, input, dim, group);
  if (number < input.dim() - 1) return number;
  base::fail(ErrorKind::usage, group.place(), call,
             "sequence_dim is {}, the last dimension of the input [{}]; it must be one before the features", dim,
             c10::Join(", ", input.sizes()));
}

torch::nn::LinearOptions whole_options(int64_t in, int64_t out, bool bias) {
  return torch::nn::LinearOptions(in, out).bias(bias);
}

std::string sequence_text(const std::optional<int64_t>& dim) {
  return dim ? fmt::format(", sequence_dim={}", *dim) : "";
}

}  // namespace

ColumnParallelLinearImpl::ColumnParallelLinearImpl(const ColumnParallelLinearOptions& the_options, comm::Group group)
    : SplitLayer(std::move(group)), options(the_options) {
  ColumnParallelLinearImpl::reset();
}

ColumnParallelLinearImpl::ColumnParallelLinearImpl(const torch::nn::LinearImpl& whole, comm::Group group)
    : SplitLayer(std::move(group)), options(whole.options.in_features(), whole.options.out_features()) {
  options.bias(whole.bias.defined());
  take(whole);
  train(whole.is_training());
}

void ColumnParallelLinearImpl::reset() {
  take(torch::nn::LinearImpl(whole_options(options.in_features(), options.out_features(), options.bias())));
}

void ColumnParallelLinearImpl::take(const torch::nn::LinearImpl& whole) {
  part_size(kColumn, "out_features", options.out_features(), group());
  weight = register_parameter("weight", part(whole.weight, kRowsOfWeight), learns(whole.weight));
  bias = register_parameter("bias", part(whole.bias, kPartOfBias), learns(whole.bias));
}

std::vector<ParameterSplit> ColumnParallelLinearImpl::parameter_splits() const { return {kRowsOfWeight, kPartOfBias}; }

at::Tensor ColumnParallelLinearImpl::forward(const at::Tensor& input) {
  check_features(kColumn, input, options.in_features(), group());
  const auto& sequence = options.sequence_dim();
  const int64_t dim = sequence ? checked_sequence_dim(kColumn, input, *sequence, group()) : 0;
  const at::Tensor output =
      split_linear(input, weight, bias, sequence ? LinearSplit::column_sequence : LinearSplit::column, dim, group());
  return options.gather_output() ? gather_from_group(output, -1, group()) : output;
}

void ColumnParallelLinearImpl::pretty_print(std::ostream& stream) const {
  stream << fmt::format("accelerate::nn::ColumnParallelLinear(in_features={}, out_features={}, bias={}, ranks={}{}{})",
                        options.in_features(), options.out_features(), options.bias(), group().size(),
                        options.gather_output() ? ", gather_output=true" : "", sequence_text(options.sequence_dim()));
}

RowParallelLinearImpl::RowParallelLinearImpl(const RowParallelLinearOptions& the_options, comm::Group group)
    : SplitLayer(std::move(group)), options(the_options) {
  RowParallelLinearImpl::reset();
}

RowParallelLinearImpl::RowParallelLinearImpl(const torch::nn::LinearImpl& whole, comm::Group group)
    : SplitLayer(std::move(group)), options(whole.options.in_features(), whole.options.out_features()) {
  options.bias(whole.bias.defined());
  take(whole);
  train(whole.is_training());
}

void RowParallelLinearImpl::reset() {
  take(torch::nn::LinearImpl(whole_options(options.in_features(), options.out_features(), options.bias())));
}

void RowParallelLinearImpl::take(const torch::nn::LinearImpl& whole) {
  part_size(kRow, "in_features", options.in_features(), group());
  weight = register_parameter("weight", part(whole.weight, kColumnsOfWeight), learns(whole.weight));
  bias = register_parameter("bias", copy_of(whole.bias), learns(whole.bias));
}

std::vector<ParameterSplit> RowParallelLinearImpl::parameter_splits() const { return {kColumnsOfWeight}; }

at::Tensor RowParallelLinearImpl::forward(const at::Tensor& input) {
  const bool is_part = options.input_is_parallel();
  check_features(kRow, input, is_part ? weight.size(1) : options.in_features(), group());
  const at::Tensor own = is_part ? input : scatter_to_group(input, -1, group());
  const auto& sequence = options.sequence_dim();
  int64_t dim = 0;
  if (sequence) {
    dim = checked_sequence_dim(kRow, input, *sequence, group());
    part_size(kRow, fmt::format("the sequence in dimension {} of the input", dim), input.size(dim), group());
  }
  at::Tensor sum = split_linear(own, weight, {}, sequence ? LinearSplit::row_sequence : LinearSplit::row, dim, group());
  if (!bias.defined()) return sum;
  // In a sequence parallel region each rank sees a part of the rows, so the gradient of the bias is a sum over ranks.
  return sum + (sequence ? copy_to_group(bias, group()) : bias).to(sum.scalar_type());
}

void RowParallelLinearImpl::pretty_print(std::ostream& stream) const {
  stream << fmt::format("accelerate::nn::RowParallelLinear(in_features={}, out_features={}, bias={}, ranks={}{}{})",
                        options.in_features(), options.out_features(), options.bias(), group().size(),
                        options.input_is_parallel() ? "" : ", input_is_parallel=false",
                        sequence_text(options.sequence_dim()));
}

}  // namespace accelerate::nn
