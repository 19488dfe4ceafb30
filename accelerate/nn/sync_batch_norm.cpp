// SPDX-License-Identifier: Apache-2.0
#include "accelerate/nn/sync_batch_norm.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/custom_class.h>
#include <torch/nn/modules/batchnorm.h>

#include <typeinfo>
#include <utility>

#include "accelerate/comm/error_context.hpp"
#include "accelerate/nn/activation_checkpoint.hpp"
#include "accelerate/nn/batch_moments.hpp"

namespace accelerate::nn {
namespace {

/// Results of forward that backward uses besides input and weight.
struct GlobalBatch : torch::CustomClassHolder {
  GlobalBatch(at::Tensor the_mean, at::Tensor the_invstd, at::Tensor the_values, comm::Group the_group)
      : mean(std::move(the_mean)),
        invstd(std::move(the_invstd)),
        values(std::move(the_values)),
        group(std::move(the_group)) {}
  at::Tensor mean, invstd, values;
  comm::Group group;
};
using GlobalBatchPtr = c10::intrusive_ptr<GlobalBatch>;

/// Gradients that throw when differentiated again, as PyTorch's once_differentiable does.
torch::autograd::variable_list once(torch::autograd::variable_list gradients) {
  for (at::Tensor& gradient : gradients) {
    if (gradient.defined()) gradient = gradient.detach().requires_grad_(true);
  }
  torch::autograd::DelayedError refuse(
      "SyncBatchNorm over several ranks is differentiated once only; for second derivatives take it out, or run them "
      "on one rank",
      static_cast<int64_t>(gradients.size()));
  return refuse.apply(std::move(gradients));
}

struct NormaliseOverRanks : torch::autograd::Function<NormaliseOverRanks> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
                            const GlobalBatchPtr& batch) {
    context->save_for_backward({input, weight.value_or(at::Tensor())});
    context->saved_data["batch"] = c10::IValue::make_capsule(batch);
    context->saved_data["affine"] = weight.has_value();
    return normalised(input, batch->mean, batch->invstd, weight, bias);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const bool again = at::GradMode::is_enabled();
    const at::NoGradGuard no_grad;
    const auto saved = context->get_saved_variables();
    const auto batch = c10::static_intrusive_pointer_cast<GlobalBatch>(context->saved_data["batch"].toCapsule());
    const at::Tensor& input = saved[0];
    const at::Tensor& weight = saved[1];
    const bool affine = context->saved_data["affine"].toBool();
    const BatchGradients part = gradients_of(gradients[0], input, batch->mean, batch->invstd);
    torch::autograd::variable_list out(4);
    if (affine) {  // local sums: the reducer averages them like all gradients
      out[1] = part.sums[1].to(weight.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
      out[2] = part.sums[0].to(weight.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    }
    if (context->needs_input_grad(0)) {
      comm::with_operation_context("backward", "the sums of SyncBatchNorm are not added up", batch->group.place(),
                                   [&] { batch->group.all_reduce(part.sums); });
      out[0] =
          input_gradient(part, gradients[0], part.sums, batch->values, affine ? batch->invstd * weight : batch->invstd);
    }
    return again ? once(std::move(out)) : out;
  }
};

std::optional<at::Tensor> present(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& the_options, comm::Group group)
    : options(the_options), group_(std::move(group)) {
  SyncBatchNormImpl::reset();
}

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& the_options, AdoptParameters)
    : options(the_options) {}

template <typename Stock>
std::shared_ptr<SyncBatchNormImpl> SyncBatchNormImpl::adopt(const Stock* stock) {
  if (stock == nullptr || typeid(*stock) != typeid(Stock)) return nullptr;
  std::shared_ptr<SyncBatchNormImpl> layer(new SyncBatchNormImpl(stock->options, AdoptParameters{}));
  const auto learns = [](const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); };
  layer->weight = layer->register_parameter("weight", stock->weight, learns(stock->weight));
  layer->bias = layer->register_parameter("bias", stock->bias, learns(stock->bias));
  layer->running_mean = layer->register_buffer("running_mean", stock->running_mean);
  layer->running_var = layer->register_buffer("running_var", stock->running_var);
  layer->num_batches_tracked = layer->register_buffer("num_batches_tracked", stock->num_batches_tracked);
  layer->train(stock->is_training());
  return layer;
}

std::shared_ptr<SyncBatchNormImpl> synchronised(const torch::nn::Module& stock) {
  if (auto layer = SyncBatchNormImpl::adopt(dynamic_cast<const torch::nn::BatchNorm1dImpl*>(&stock))) return layer;
  if (auto layer = SyncBatchNormImpl::adopt(dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&stock))) return layer;
  return SyncBatchNormImpl::adopt(dynamic_cast<const torch::nn::BatchNorm3dImpl*>(&stock));
}

void SyncBatchNormImpl::reset() {
  const bool affine = options.affine();
  const bool tracks = options.track_running_stats();
  const int64_t channels = options.num_features();
  weight = register_parameter("weight", affine ? at::empty({channels}) : at::Tensor(), affine);
  bias = register_parameter("bias", affine ? at::empty({channels}) : at::Tensor(), affine);
  running_mean = register_buffer("running_mean", tracks ? at::zeros({channels}) : at::Tensor());
  running_var = register_buffer("running_var", tracks ? at::ones({channels}) : at::Tensor());
  num_batches_tracked =
      register_buffer("num_batches_tracked", tracks ? at::zeros({}, at::TensorOptions(at::kLong)) : at::Tensor());
  reset_parameters();
}

void SyncBatchNormImpl::reset_running_stats() {
  if (!options.track_running_stats()) return;
  running_mean.zero_();
  running_var.fill_(1);
  num_batches_tracked.zero_();
}

void SyncBatchNormImpl::reset_parameters() {
  reset_running_stats();
  if (!options.affine()) return;
  const at::NoGradGuard no_grad;
  weight.fill_(1);
  bias.zero_();
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  const auto momentum = options.momentum();
  stream << fmt::format(
      "accelerate::nn::SyncBatchNorm({}, eps={}, momentum={}, affine={}, track_running_stats={}, ranks={})",
      options.num_features(), options.eps(), momentum ? fmt::to_string(*momentum) : "None", options.affine(),
      options.track_running_stats(), group_.size());
}

bool SyncBatchNormImpl::connected() const { return group_.backend() != "single"; }

void SyncBatchNormImpl::connect(comm::Group group) { group_ = std::move(group); }

void SyncBatchNormImpl::check_input(const at::Tensor& input) const {
  if (input.dim() < 2) {
    base::fail(ErrorKind::usage, group_.place(), "sync_batch_norm",
               "the input is [{}], must have a batch and a channel dimension, [N, {}, ...]",
               c10::Join(", ", input.sizes()), options.num_features());
  }
  if (input.size(1) != options.num_features()) {
    base::fail(ErrorKind::usage, group_.place(), "sync_batch_norm",
               "the input is [{}] with {} channels, num_features is {}", c10::Join(", ", input.sizes()), input.size(1),
               options.num_features());
  }
}

/// \returns the update factor of the running statistics.
double SyncBatchNormImpl::count_batch() {
  if (is_training() && num_batches_tracked.defined() && !recomputing()) num_batches_tracked += 1;
  if (options.momentum()) return *options.momentum();
  const bool averages = is_training() && num_batches_tracked.defined();
  return averages ? 1.0 / num_batches_tracked.item<double>() : 0.0;
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  check_input(input);
  const double factor = count_batch();
  if (is_training() && group_.size() > 1) return reduce_over_ranks(input, factor);
  const bool own_statistics = is_training() || !options.track_running_stats();
  const bool follows = !own_statistics || !recomputing();
  return torch::nn::functional::detail::batch_norm(input, follows ? running_mean : at::Tensor(),
                                                   follows ? running_var : at::Tensor(), weight, bias, own_statistics,
                                                   factor, options.eps());
}

at::Tensor SyncBatchNormImpl::reduce_over_ranks(const at::Tensor& input, double factor) {
  GlobalBatchPtr batch;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor mine = moments_of(input);
    const at::Tensor all = at::empty({group_.size() * mine.numel()}, mine.options());
    comm::with_operation_context("forward", "the statistics of SyncBatchNorm are not put together", group_.place(),
                                 [&] { group_.all_gather_async(all, mine).wait(); });
    const BatchMoments whole = combine(all.view({group_.size(), mine.numel()}));
    // Only on the CPU: on an accelerator the host would have to wait.
    if (input.is_cpu() && whole.values.item<double>() < 2) {
      base::fail(ErrorKind::usage, group_.place(), "sync_batch_norm",
                 "the batches of all {} ranks together have {} values per channel, training needs at least 2",
                 group_.size(), whole.values.item<double>());
    }
    if (running_mean.defined() && !recomputing()) {
      running_mean.mul_(1 - factor).add_(whole.mean, factor);
      running_var.mul_(1 - factor).add_(whole.unbiased, factor);
    }
    batch =
        c10::make_intrusive<GlobalBatch>(whole.mean, at::rsqrt(whole.variance + options.eps()), whole.values, group_);
  }
  return NormaliseOverRanks::apply(input, present(weight), present(bias), batch);
}

}  // namespace accelerate::nn
