// SPDX-License-Identifier: Apache-2.0
// Ranks as processes: each has its own metric, all have the same rate.
#include "tests/testing.hpp"
//
#include "accelerate/accelerate.hpp"
#include "tests/world.hpp"

namespace {

torch::optim::SGD sgd() { return torch::optim::SGD({torch::zeros({1})}, torch::optim::SGDOptions(1.0)); }

double rate_of(const torch::optim::Optimizer& optimizer) { return optimizer.param_groups()[0].options().get_lr(); }

/// The mean is constant, while each single rank's metrics fall or rise.
double metric(int64_t rank, int64_t ranks, int i) {
  return 10.0 + static_cast<double>(i) * (static_cast<double>(rank) - static_cast<double>(ranks - 1) / 2.0);
}

}  // namespace

TEST_CASE("all ranks reduce their rate in the same step if the mean metric is on a plateau") {
  accelerate::Accelerator accelerator(testing::world(), {});
  auto stock = sgd(), of_libtorch = sgd();
  auto ours = accelerator.prepare(accelerate::optim::ReduceLROnPlateau(stock, {.factor = 0.5, .patience = 1}));
  auto theirs = accelerator.prepare(
      torch::optim::ReduceLROnPlateauScheduler(of_libtorch, torch::optim::ReduceLROnPlateauScheduler::min, 0.5F, 1));
  std::vector<double> rates;
  for (int i = 0; i < 5; ++i) {
    const double mine = metric(accelerator.process_index(), accelerator.num_processes(), i);
    ours.step(mine);
    theirs.step(mine);
    rates.push_back(rate_of(stock));
    CHECK(rate_of(of_libtorch) == rates.back());
  }
  CHECK(rates == std::vector<double>{1, 1, 0.5, 0.5, 0.25});
}

TEST_CASE("a NaN metric on one rank is NaN on all") {
  accelerate::Accelerator accelerator(testing::world(), {});
  auto stock = sgd();
  auto scheduler = accelerator.prepare(accelerate::optim::ReduceLROnPlateau(stock, {.factor = 0.5, .patience = 0}));
  scheduler.step(10.0);
  scheduler.step(accelerator.is_last_process() ? std::nan("") : 1.0);
  CHECK(rate_of(stock) == 0.5);
}
