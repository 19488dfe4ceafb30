// SPDX-License-Identifier: Apache-2.0
#include "accelerate/pipeline/tied_parameters.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "accelerate/comm/error_context.hpp"

namespace accelerate::pipeline {
namespace {

/// The gradient of an embedding may be sparse, and that of the tied head is dense.
at::Tensor dense_of(const at::Tensor& gradient) {
  return gradient.layout() == c10::kStrided ? gradient.contiguous() : gradient.to_dense();
}

}  // namespace

TiedParameters::TiedParameters(comm::Group group, int64_t tag, std::vector<TiedParameter> tied)
    : group_(std::move(group)), tag_(tag), tied_(std::move(tied)) {
  std::erase_if(tied_, [&](const TiedParameter& each) {
    return std::find(each.ranks.begin(), each.ranks.end(), group_.rank()) == each.ranks.end();
  });
}

void TiedParameters::share_values() const {
  const at::NoGradGuard no_grad;
  for (const auto& each : tied_) {
    const int64_t first = each.ranks.front();
    const at::Tensor value = each.tensor.detach();
    comm::with_operation_context("Pipeline", fmt::format("the value of {} is not shared", each.name), group_.place(),
                                 [&] {
                                   if (group_.rank() != first) return group_.recv(value, first, tag_);
                                   for (size_t i = 1; i < each.ranks.size(); ++i) {
                                     group_.send(value, each.ranks[i], tag_);
                                   }
                                 });
  }
}

void TiedParameters::begin_step() {
  set_aside_.clear();
  for (auto& each : tied_) {
    set_aside_.push_back(each.tensor.grad());
    each.tensor.mutable_grad().reset();
  }
}

/// The lower rank of a pair sends first and the higher rank receives first, because NCCL executes them in order.
std::vector<at::Tensor> TiedParameters::exchange(const TiedParameter& tied, const at::Tensor& mine) const {
  std::vector<at::Tensor> gradients;
  std::vector<comm::Pending> pending;
  for (const int64_t rank : tied.ranks) {
    if (rank == group_.rank()) {
      gradients.push_back(mine);
      continue;
    }
    gradients.push_back(at::empty_like(mine));
    if (group_.rank() < rank) pending.push_back(group_.send_async(mine, rank, tag_));
    pending.push_back(group_.recv_async(gradients.back(), rank, tag_));
    if (group_.rank() > rank) pending.push_back(group_.send_async(mine, rank, tag_));
  }
  for (auto& each : pending) each.wait();
  return gradients;
}

at::Tensor TiedParameters::sum_over_ranks(const TiedParameter& tied, const at::Tensor& own) const {
  const auto gradients = comm::with_operation_context(
      "Pipeline.train_step", fmt::format("the gradient of the tied parameter {} is not summed", tied.name),
      group_.place(), [&] { return exchange(tied, own); });
  at::Tensor sum = gradients[0].clone();
  for (size_t g = 1; g < gradients.size(); ++g) sum.add_(gradients[g]);
  return sum;
}

void TiedParameters::finish_step(const std::function<at::Tensor(const at::Tensor&)>& gradient_of) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < tied_.size(); ++i) {
    at::Tensor& parameter = tied_[i].tensor;
    if (!parameter.requires_grad()) continue;
    if (gradient_of) {
      const at::Tensor gradient = gradient_of(parameter);
      if (gradient.defined()) gradient.copy_(sum_over_ranks(tied_[i], gradient.contiguous()));
      continue;
    }
    const at::Tensor sum =
        sum_over_ranks(tied_[i], parameter.grad().defined() ? dense_of(parameter.grad()) : at::zeros_like(parameter));
    if (set_aside_[i].defined()) {
      parameter.mutable_grad() = set_aside_[i].add_(sum);
    } else {
      parameter.mutable_grad() = sum;
    }
  }
}

bool TiedParameters::counts_here(const at::Tensor& parameter) const {
  return std::none_of(tied_.begin(), tied_.end(), [&](const TiedParameter& each) {
    return each.tensor.is_same(parameter) && each.ranks.front() != group_.rank();
  });
}

}  // namespace accelerate::pipeline
