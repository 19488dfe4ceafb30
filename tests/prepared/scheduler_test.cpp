// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <nlohmann/json.hpp>

#include "accelerate/optim/schedules/scheduler_state.hpp"
#include "tests/accelerator/ranks.hpp"

namespace optim = accelerate::optim;
using accelerate::Accelerator;
using accelerate::SchedulerUnit;
using Rates = std::vector<double>;

namespace {

torch::optim::SGD one_weight() {
  return torch::optim::SGD({torch::zeros({1})}, torch::optim::SGDOptions(1.0).momentum(0.9));
}

/// Rates on rank 0 after each step of a prepared schedule.
Rates rates(int64_t ranks, int steps, SchedulerUnit unit,
            const std::function<optim::Scheduler(torch::optim::Optimizer&)>& make) {
  Rates list;
  on_ranks(ranks,
           [&](Accelerator& accelerator) {
             auto stock = one_weight();
             auto [optimizer, scheduler] = accelerator.prepare(stock, make(stock));
             for (int i = 0; i < steps; ++i) {
               optimizer.step();
               scheduler.step();
               if (accelerator.is_main_process()) list.push_back(scheduler.get_last_lr()[0]);
             }
           },
           {.scheduler_unit = unit});
  return list;
}

std::vector<std::string> logged(const std::function<void()>& run) {
  std::vector<std::string> lines;
  accelerate::base::reset_log_once();
  auto before = accelerate::base::set_log_handler([&](auto, std::string_view line) { lines.emplace_back(line); });
  run();
  accelerate::base::set_log_handler(std::move(before));
  return lines;
}

}  // namespace

TEST_CASE("a prepared schedule stops at its end, unlike Hugging Face Accelerate's rising rate") {
  const auto one_cycle = [](auto& optimizer) { return optim::OneCycleLR(optimizer, 0.01, 5); };
  const double last = 0.01 / 25 / 1e4;
  const auto list = rates(2, 4, SchedulerUnit::processes, one_cycle);
  CHECK(list[0] == doctest::Approx(0.006113).epsilon(1e-3));
  for (size_t i = 1; i < list.size(); ++i) CHECK(list[i] == doctest::Approx(last).epsilon(1e-12));
  const auto by_steps = rates(1, 9, SchedulerUnit::optimizer_steps, one_cycle);
  CHECK(by_steps[2] > 2 * last);
  for (size_t i = 3; i < by_steps.size(); ++i) CHECK(by_steps[i] == doctest::Approx(last).epsilon(1e-12));
}

TEST_CASE("after one step on two ranks a one-cycle schedule is at 1, or at 2 if it counts processes") {
  for (const auto unit : {SchedulerUnit::optimizer_steps, SchedulerUnit::processes}) {
    on_ranks(2,
             [&](Accelerator& accelerator) {
               auto stock = one_weight();
               auto [optimizer, scheduler] = accelerator.prepare(stock, optim::OneCycleLR(stock, 0.01, 5));
               optimizer.step();
               scheduler.step();
               CHECK(scheduler->steps() == (unit == SchedulerUnit::processes ? 2 : 1));
             },
             {.scheduler_unit = unit});
  }
}

TEST_CASE("a cosine with warm-up keeps its last rate instead of increasing again") {
  const auto cosine = [](auto& optimizer) { return optim::get_cosine_schedule_with_warmup(optimizer, 1, 4); };
  const auto list = rates(1, 7, SchedulerUnit::optimizer_steps, cosine);
  CHECK(list[0] == 1.0);
  CHECK(list[2] > 0);
  for (size_t i = 3; i < list.size(); ++i) CHECK(list[i] == 0.0);
}

TEST_CASE("a linear schedule reaches 0 exactly at the last micro-batch, for any accumulation") {
  for (const int64_t k : {1, 2, 4}) {
    for (const auto unit : {SchedulerUnit::optimizer_steps, SchedulerUnit::processes}) {
      Rates list;
      on_ranks(2,
               [&](Accelerator& accelerator) {
                 OneWeight net;
                 torch::optim::SGD stock(net->parameters(), 1.0);
                 const int64_t steps = unit == SchedulerUnit::processes ? 20 : 10;
                 auto [model, optimizer, scheduler] =
                     accelerator.prepare(net, stock, optim::get_linear_schedule_with_warmup(stock, 0, steps));
                 for (int64_t micro = 0; micro < 10 * k; ++micro) {
                   auto window = accelerator.accumulate(model);
                   accelerator.backward(model(torch::ones({1}, torch::kDouble)).sum());
                   optimizer.step();
                   scheduler.step();
                   optimizer.zero_grad();
                   if (accelerator.is_main_process()) list.push_back(scheduler.get_last_lr()[0]);
                 }
               },
               {.gradient_accumulation_steps = k, .scheduler_unit = unit});
      CHECK(list.at(list.size() - 2) > 0);
      CHECK(list.back() == 0);
    }
  }
}

TEST_CASE("a schedule warns once if training passes its end") {
  const auto train = [](int steps) {
    return logged([&] {
      rates(1, steps, SchedulerUnit::optimizer_steps,
            [](auto& optimizer) { return optim::OneCycleLR(optimizer, 0.01, 5); });
    });
  };
  const auto about_the_end = [](const std::vector<std::string>& lines) {
    std::vector<std::string> found;
    for (const auto& line : lines) {
      if (line.find("scheduler.step") != std::string::npos) found.push_back(line.substr(line.find("scheduler.step")));
    }
    return found;
  };
  CHECK(about_the_end(train(5)).empty());  // one step per rate
  CHECK(about_the_end(train(9)) ==
        std::vector<std::string>{"scheduler.step: OneCycleLR has ended after 4 steps and keeps its last value; if "
                                 "training continues, make it longer: it counts optimizer steps of the whole job"});
}

TEST_CASE("a prepared schedule is saved and loaded on any number of ranks") {
  std::string saved;
  const auto make = [](auto& optimizer) { return optim::ExponentialLR(optimizer, 0.5); };
  on_ranks(2, [&](Accelerator& accelerator) {
    auto stock = one_weight();
    auto scheduler = accelerator.prepare(make(stock));
    for (int i = 0; i < 3; ++i) scheduler.step();
    if (accelerator.is_main_process()) saved = nlohmann::json(scheduler.state()).dump();
  });
  Accelerator accelerator({.cpu = true});
  auto stock = one_weight();
  auto scheduler = accelerator.prepare(make(stock));
  scheduler.load_state(optim::scheduler_state_from_json(nlohmann::json::parse(saved)));
  CHECK(stock.param_groups()[0].options().get_lr() == 0.125);
  scheduler.step();
  CHECK(scheduler.get_last_lr() == Rates{0.0625});
}

TEST_CASE("thread ranks follow the mean of their metrics on a plateau and have one rate") {
  // Rank 0's metric falls, rank 1's rises by the same amount, so no mean is better than the first.
  on_ranks(2, [&](Accelerator& accelerator) {
    auto stock = one_weight();
    auto local = one_weight();
    optim::ReduceLROnPlateau alone(local, {.factor = 0.5, .patience = 1});
    auto scheduler = accelerator.prepare(optim::ReduceLROnPlateau(stock, {.factor = 0.5, .patience = 1}));
    for (int i = 0; i < 4; ++i) {
      const double metric = accelerator.is_main_process() ? 10.0 - i : 10.0 + i;
      scheduler.step(metric);
      alone.step(metric);
    }
    CHECK(scheduler.get_last_lr() == Rates{0.5});
    CHECK(alone.get_last_lr() == Rates{accelerator.is_main_process() ? 1.0 : 0.5});
    CHECK(scheduler.state().plateau->best == 10.0);
  });
}

TEST_CASE("a plateau schedule ignores steps within a window and uses a metric once") {
  Accelerator accelerator({.cpu = true, .gradient_accumulation_steps = 2, .scheduler_unit = SchedulerUnit::processes});
  auto stock = one_weight();
  auto scheduler = accelerator.prepare(optim::ReduceLROnPlateau(stock));
  {
    auto window = accelerator.accumulate();
    scheduler.step(1.0);
  }
  CHECK(scheduler->steps() == 0);
  {
    auto window = accelerator.accumulate();
    scheduler.step(torch::full({}, 2.0));
  }
  CHECK(scheduler->steps() == 1);
  CHECK(scheduler.state().plateau->best == 2.0);
}
