// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/sgd.h>

#include <vector>

/// One parameter group per rate.
inline torch::optim::SGD sgd(const std::vector<double>& rates, double momentum = 0) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const double rate : rates) {
    auto options = std::make_unique<torch::optim::SGDOptions>(rate);
    options->momentum(momentum);
    groups.emplace_back(std::vector<at::Tensor>{torch::zeros({1})}, std::move(options));
  }
  return torch::optim::SGD(groups, torch::optim::SGDOptions(rates.front()).momentum(momentum));
}
inline torch::optim::SGD sgd(double rate) { return sgd(std::vector<double>{rate}); }

/// The first group's rate initially and after each step.
template <typename Scheduler>
std::vector<double> rates(Scheduler& scheduler, int steps) {
  std::vector<double> list{scheduler.get_last_lr()[0]};
  for (int i = 0; i < steps; ++i) {
    scheduler.step();
    list.push_back(scheduler.get_last_lr()[0]);
  }
  return list;
}
