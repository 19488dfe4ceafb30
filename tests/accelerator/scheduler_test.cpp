// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include "tests/accelerator/ranks.hpp"

using accelerate::Accelerator;
using accelerate::SchedulerUnit;
using Rates = std::vector<double>;

namespace {

struct Row {
  int64_t ranks, k;
  Rates by_default, without_optimizer, split_batches;
};

// LambdaLR f(n) = n, six micro-batches: the rate after each, as in Hugging Face Accelerate (behaviour.md section 10).
const Rates each{1, 2, 3, 4, 5, 6}, each_second{0, 1, 1, 2, 2, 3};
const std::vector<Row> table{{1, 1, each, each, each},
                             {1, 2, each_second, each, each_second},
                             {2, 1, {2, 4, 6, 8, 10, 12}, each, each},
                             {2, 2, {0, 2, 2, 4, 4, 6}, each, each_second},
                             {3, 1, {3, 6, 9, 12, 15, 18}, each, each},
                             {3, 2, {0, 3, 3, 6, 6, 9}, each, each_second}};

Rates rates(const Row& row, accelerate::AcceleratorOptions options) {
  Rates list;
  options.gradient_accumulation_steps = row.k;
  on_ranks(
      row.ranks,
      [&](Accelerator& accelerator) {
        OneWeight net;
        torch::optim::SGD sgd(net->parameters(), 1.0);
        accelerate::optim::LambdaLR linear(sgd, [](int64_t steps) { return static_cast<double>(steps); });
        auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, linear);
        for (int micro = 0; micro < 6; ++micro) {
          auto window = accelerator.accumulate(model);
          accelerator.backward(model(torch::ones({1}, torch::kDouble)).sum());
          optimizer.step();
          scheduler.step();
          optimizer.zero_grad();
          if (accelerator.is_main_process()) list.push_back(scheduler.get_last_lr()[0]);
        }
      },
      options);
  return list;
}

}  // namespace

TEST_CASE("a schedule counts optimizer steps of the whole job, on any number of ranks") {
  for (const Row& row : table) {
    CAPTURE(row.ranks);
    CHECK(rates(row, {}) == (row.k == 1 ? each : each_second));
    CHECK(rates(row, {.step_scheduler_with_optimizer = false}) == each);
    CHECK(rates(row, {.split_batches = true}) == (row.k == 1 ? each : each_second));
  }
}

TEST_CASE("a schedule can move by the number of processes, as in Hugging Face Accelerate") {
  constexpr auto processes = SchedulerUnit::processes;
  for (const Row& row : table) {
    CAPTURE(row.ranks);
    CHECK(rates(row, {.scheduler_unit = processes}) == row.by_default);
    CHECK(rates(row, {.step_scheduler_with_optimizer = false, .scheduler_unit = processes}) == row.without_optimizer);
    CHECK(rates(row, {.split_batches = true, .scheduler_unit = processes}) == row.split_batches);
  }
}

TEST_CASE("LibTorch's schedulers keep their lag of one call after prepare()") {
  Accelerator accelerator({.cpu = true});
  torch::optim::SGD sgd({torch::ones({1})}, torch::optim::SGDOptions(1.0));
  torch::optim::StepLR halving(sgd, 2, 0.5);
  torch::optim::ReduceLROnPlateauScheduler plateau(sgd);
  auto [optimizer, scheduler, on_plateau] = accelerator.prepare(sgd, halving, plateau);
  Rates list;
  for (int i = 0; i < 6; ++i) {
    scheduler.step();
    on_plateau.step(1.0F);
    list.push_back(sgd.param_groups()[0].options().get_lr());
  }
  CHECK(list == Rates{1, 1, 0.5, 0.5, 0.25, 0.25});
}
