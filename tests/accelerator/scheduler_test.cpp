// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include "tests/accelerator/ranks.hpp"

using accelerate::Accelerator;
using accelerate::SchedulerUnit;
using Rates = std::vector<double>;

namespace {

// LambdaLR f(n) = n, six micro-batches: the rate after each, as behaviour.md section 10 lists it.
Rates rates(int64_t ranks, int64_t k, SchedulerUnit unit, bool with_optimizer = true) {
  Rates list;
  on_ranks(ranks,
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
           {.gradient_accumulation_steps = k, .step_scheduler_with_optimizer = with_optimizer, .scheduler_unit = unit});
  return list;
}

}  // namespace

TEST_CASE("a schedule counts optimizer steps of the whole job") {
  for (const int64_t ranks : {1, 2, 3}) {
    CHECK(rates(ranks, 1, SchedulerUnit::optimizer_steps) == Rates{1, 2, 3, 4, 5, 6});
    CHECK(rates(ranks, 2, SchedulerUnit::optimizer_steps) == Rates{0, 1, 1, 2, 2, 3});
  }
}

TEST_CASE("on request a schedule moves by the number of processes, as Hugging Face Accelerate's do") {
  CHECK(rates(1, 2, SchedulerUnit::processes) == Rates{0, 1, 1, 2, 2, 3});
  CHECK(rates(2, 1, SchedulerUnit::processes) == Rates{2, 4, 6, 8, 10, 12});
  CHECK(rates(2, 2, SchedulerUnit::processes) == Rates{0, 2, 2, 4, 4, 6});
  CHECK(rates(3, 2, SchedulerUnit::processes) == Rates{0, 3, 3, 6, 6, 9});
}

TEST_CASE("a schedule that does not follow the optimizer moves at every call") {
  CHECK(rates(1, 2, SchedulerUnit::optimizer_steps, false) == Rates{1, 2, 3, 4, 5, 6});
  CHECK(rates(2, 2, SchedulerUnit::processes, false) == Rates{1, 2, 3, 4, 5, 6});
}

TEST_CASE("LibTorch's own schedulers are prepared as they are, with their lag of one call") {
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
