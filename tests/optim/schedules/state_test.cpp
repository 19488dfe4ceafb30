// SPDX-License-Identifier: Apache-2.0
// probe.cpp checks for all schedules that a loaded schedule continues with the same values.
#include "tests/testing.hpp"
//
#include <nlohmann/json.hpp>

#include "accelerate/base/error.hpp"
#include "accelerate/optim/schedules/chained.hpp"
#include "accelerate/optim/schedules/cosine_warm_restarts.hpp"
#include "accelerate/optim/schedules/linear.hpp"
#include "accelerate/optim/schedules/one_cycle.hpp"
#include "accelerate/optim/schedules/reduce_on_plateau.hpp"
#include "accelerate/optim/schedules/scheduler_state.hpp"
#include "accelerate/optim/schedules/sequential.hpp"
#include "accelerate/optim/schedules/step.hpp"
#include "tests/optim/schedules/support.hpp"

using namespace accelerate::optim;
using accelerate::state::SchedulerState;
using nlohmann::json;
using Rates = std::vector<double>;

TEST_CASE("a state contains kind, steps and rates, as a struct and as JSON") {
  auto optimizer = sgd({1.0, 2.0});
  StepLR scheduler(optimizer, 1, 0.5);
  scheduler.step();
  const auto state = scheduler.state();
  CHECK(state == SchedulerState{.name = "StepLR", .steps = 1, .base_lrs = {1.0, 2.0}, .last_lrs = {0.5, 1.0}});
  const json saved = state;
  CHECK(saved.dump() == R"({"base_lrs":[1.0,2.0],"last_lrs":[0.5,1.0],"name":"StepLR","steps":1,"version":1})");
  CHECK(scheduler_state_from_json(json::parse(saved.dump())) == state);
}

TEST_CASE("a loaded state sets the optimizer's rates and momenta") {
  auto optimizer = sgd({1.0}, 0.9), another = sgd({1.0}, 0.9);
  OneCycleLR scheduler(optimizer, 0.5, 10), loaded(another, 0.5, 10);
  for (int i = 0; i < 4; ++i) scheduler.step();
  const auto state = scheduler_state_from_json(json::parse(json(scheduler.state()).dump()));
  CHECK(state == scheduler.state());
  loaded.load_state(state);
  CHECK(loaded.get_last_lr() == scheduler.get_last_lr());
  const auto momentum = [](const torch::optim::SGD& sgd) {
    return static_cast<const torch::optim::SGDOptions&>(sgd.param_groups()[0].options()).momentum();
  };
  CHECK(momentum(another) == momentum(optimizer));
  CHECK(momentum(another) != 0.95);
}

TEST_CASE("a loaded schedule continues with its own arguments") {
  auto optimizer = sgd(1.0), another = sgd(1.0);
  StepLR scheduler(optimizer, 2, 0.5), longer(another, 3, 0.5);
  for (int i = 0; i < 2; ++i) scheduler.step();
  longer.load_state(scheduler.state());
  CHECK(rates(longer, 2) == Rates{0.5, 0.25, 0.25});
}

TEST_CASE("the state of another kind of schedule, or of other groups, is refused and changes nothing") {
  auto one = sgd(1.0), two = sgd({1.0, 2.0});
  StepLR scheduler(one, 1, 0.5);
  StepLR of_two(two, 1, 0.5);
  scheduler.step();
  CHECK_THROWS_WITH(
      scheduler.load_state(LinearLR(two).state()),
      "load_state: the saved state is of the schedule LinearLR, this one is StepLR; make the schedule that "
      "was saved");
  CHECK_THROWS_WITH(scheduler.load_state(of_two.state()),
                    "load_state: the saved state of StepLR has 2 parameter groups, the optimizer 1; give it the groups "
                    "it had");
  const SequentialLR sequence(two, {LinearLR(two), StepLR(two, 3)}, {5});
  CHECK_THROWS_WITH(
      of_two.load_state(sequence.state()),
      "load_state: the saved state is of the schedule SequentialLR(LinearLR, StepLR), this one is StepLR; "
      "make the schedule that was saved");
  CHECK_THROWS_WITH(ReduceLROnPlateau(one).load_state(scheduler.state()),
                    "load_state: the saved state is of the schedule StepLR, this one is ReduceLROnPlateau; make the "
                    "schedule that was saved");
  CHECK_THROWS_WITH(scheduler.load_state({.name = "StepLR", .steps = -1, .base_lrs = {1.0}, .last_lrs = {1.0}}),
                    "load_state: the saved state of StepLR has -1 steps, 1 base_lrs, 1 last_lrs and 0 momenta; it was "
                    "not written by this library");
  CHECK_THROWS_WITH(
      ReduceLROnPlateau(one).load_state(
          {.name = "ReduceLROnPlateau", .steps = 1, .base_lrs = {1.0}, .last_lrs = {1.0}}),
      "load_state: the saved state of ReduceLROnPlateau has no best metric; it was not written by this library");
  CHECK(scheduler.steps() == 1);
  CHECK(scheduler.get_last_lr() == Rates{0.5});
}

// tests/checkpoint/parity.py continues from it in PyTorch.
TEST_CASE("a state contains PyTorch's additional values for each part and in the optimizer's groups") {
  auto optimizer = sgd({1.0});
  SequentialLR sequence(optimizer,
                        {LinearLR(optimizer, 0.1, 1.0, 3), CosineAnnealingWarmRestarts(optimizer, 2, 2, 0.25)}, {3});
  const auto steps = [&] {
    std::vector<int64_t> list;
    for (const auto& part : sequence.state().python.parts) list.push_back(part.steps);
    return list;
  };
  const auto restarts = [&] { return sequence.state().python.parts.at(1).python.members; };
  using Members = accelerate::state::PythonSchedule::Dict;
  const auto members = [](int64_t T_i, int64_t T_cur) {
    return Members{{"T_0", int64_t{2}}, {"T_i", T_i}, {"T_mult", int64_t{2}}, {"eta_min", 0.25}, {"T_cur", T_cur}};
  };
  CHECK((sequence.state().python.members == Members{{"_milestones", std::vector<int64_t>{3}}}));
  CHECK(steps() == std::vector<int64_t>{0, -1});
  CHECK((restarts() == members(2, 0)));
  for (int i = 0; i < 6; ++i) sequence.step();
  CHECK(steps() == std::vector<int64_t>{2, 3});
  CHECK((restarts() == members(4, 1)));
  CHECK(sequence.state().python.counts);
  CHECK(sequence.state().python.of_groups == std::map<std::string, Rates>{{"initial_lr", {1.0}}});

  torch::optim::AdamW adamw(std::vector{torch::zeros({1})}, torch::optim::AdamWOptions(0.1));
  const OneCycleLR cycle(adamw, 0.5, 20, {.three_phase = true});
  const auto python = ChainedScheduler({cycle}).state().python;
  CHECK_FALSE(python.counts);
  CHECK(python.of_groups == std::map<std::string, Rates>{{"base_momentum", {0.85}},
                                                         {"initial_lr", {0.5 / 25}},
                                                         {"max_lr", {0.5}},
                                                         {"max_momentum", {0.95}},
                                                         {"min_lr", {0.5 / 25 / 1e4}}});
  CHECK((python.parts.at(0).python.members == Members{{"total_steps", int64_t{20}},
                                                      {"cycle_momentum", true},
                                                      {"_anneal_func_type", std::string("cos")},
                                                      {"use_beta1", true}}));
  CHECK((python.parts.at(0).python.phases.at(1) == Members{{"end_step", 10.0},
                                                           {"start_lr", std::string("max_lr")},
                                                           {"end_lr", std::string("initial_lr")},
                                                           {"start_momentum", std::string("base_momentum")},
                                                           {"end_momentum", std::string("max_momentum")}}));
}

TEST_CASE("values outside JSON's numbers are saved too") {
  auto optimizer = sgd(1.0), another = sgd(1.0);
  const ReduceLROnPlateau fresh(optimizer);
  ReduceLROnPlateau loaded(another);
  CHECK(json(fresh.state())["plateau"].dump() == R"({"best":"inf","cooldown":0,"num_bad":0})");
  CHECK(scheduler_state_from_json(json::parse(json(fresh.state()).dump())) == fresh.state());
  SchedulerState odd = fresh.state();
  odd.plateau->best = -std::numeric_limits<double>::infinity();
  odd.last_lrs = {std::numeric_limits<double>::quiet_NaN()};
  const auto back = scheduler_state_from_json(json::parse(json(odd).dump()));
  CHECK(back.plateau == odd.plateau);
  CHECK(std::isnan(back.last_lrs.at(0)));
}

TEST_CASE("JSON that is not a saved schedule is refused") {
  auto optimizer = sgd(1.0);
  const json good = StepLR(optimizer, 1).state();
  const auto with = [&](const char* key, const json& value) {
    json changed = good;
    changed[key] = value;
    return changed;
  };
  json without = good;
  without.erase("base_lrs");
  CHECK_THROWS_WITH(scheduler_state_from_json(json::array()),
                    "load_state: the saved state is array, must be a JSON object");
  CHECK_THROWS_WITH(scheduler_state_from_json(with("version", 2)),
                    "load_state: the saved state has version 2, this library reads 1");
  CHECK_THROWS_WITH(scheduler_state_from_json(without),
                    "load_state: the saved state has no \"base_lrs\"; it was not written by this library");
  CHECK_THROWS_WITH(scheduler_state_from_json(with("name", 7)),
                    "load_state: \"name\" of the saved state is 7, must be a string");
  CHECK_THROWS_WITH(scheduler_state_from_json(with("last_lrs", 1.0)),
                    "load_state: \"last_lrs\" of the saved state is 1.0, must be a list");
  CHECK_THROWS_WITH(scheduler_state_from_json(with("last_lrs", {"much"})),
                    "load_state: \"last_lrs\" of the saved state holds \"much\", must be numbers");
  CHECK_THROWS_WITH(scheduler_state_from_json(with("plateau", {{"best", 1.0}, {"cooldown", 0}})),
                    "load_state: the saved state has no \"num_bad\"; it was not written by this library");
}
