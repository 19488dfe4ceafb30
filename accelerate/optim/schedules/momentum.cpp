// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/schedules/momentum.hpp"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>

#include "accelerate/base/error.hpp"

namespace accelerate::optim {
namespace {

/// Returns the group's momentum or beta1, or null if the optimizer has none.
double* momentum_in(torch::optim::OptimizerOptions& options) {
  using namespace torch::optim;
  if (auto* sgd = dynamic_cast<SGDOptions*>(&options)) return &sgd->momentum();
  if (auto* rmsprop = dynamic_cast<RMSpropOptions*>(&options)) return &rmsprop->momentum();
  if (auto* adam = dynamic_cast<AdamOptions*>(&options)) return &std::get<0>(adam->betas());
  if (auto* adamw = dynamic_cast<AdamWOptions*>(&options)) return &std::get<0>(adamw->betas());
  return nullptr;
}

double* momentum_in(const torch::optim::OptimizerParamGroup& group) {
  return momentum_in(const_cast<torch::optim::OptimizerParamGroup&>(group).options());
}

}  // namespace

void check_has_momentum(const torch::optim::Optimizer& optimizer, std::string_view schedule, std::string_view reason,
                        std::string_view remedy) {
  const auto& groups = optimizer.param_groups();
  if (std::all_of(groups.begin(), groups.end(), [](const auto& group) { return momentum_in(group) != nullptr; }))
    return;
  base::fail(ErrorKind::usage, {}, schedule, "{}, and the optimizer has neither momentum nor betas; {}", reason,
             remedy);
}

bool momentum_is_beta1(const torch::optim::Optimizer& optimizer) {
  const auto& groups = optimizer.param_groups();
  return std::any_of(groups.begin(), groups.end(), [](const auto& group) {
    const auto& options = group.options();
    return dynamic_cast<const torch::optim::AdamOptions*>(&options) != nullptr ||
           dynamic_cast<const torch::optim::AdamWOptions*>(&options) != nullptr;
  });
}

std::vector<double> momenta_of(const torch::optim::Optimizer& optimizer) {
  std::vector<double> momenta;
  for (const auto& group : optimizer.param_groups()) momenta.push_back(*momentum_in(group));
  return momenta;
}

void set_momenta(torch::optim::Optimizer& optimizer, const std::vector<std::optional<double>>& momenta) {
  for (size_t i = 0; i < momenta.size(); ++i) {
    if (momenta[i]) *momentum_in(optimizer.param_groups()[i]) = *momenta[i];
  }
}

}  // namespace accelerate::optim
