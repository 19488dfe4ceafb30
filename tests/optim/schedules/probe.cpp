// SPDX-License-Identifier: Apache-2.0
// Runs schedules for parity.py: reads a JSON list of cases from stdin, writes a list of results to stdout.
//
// A case: {"schedule", "args", "optimizer", "lrs": one per group, "default_lr", "steps", "set_lr": {step: rate}}; for
// ReduceLROnPlateau "metrics" instead of "steps". A result: {"lrs": [step][group], "momenta": [step][group]}. After
// half of the steps each schedule is saved and loaded into one with another optimizer.
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "accelerate/optim/schedules/chained.hpp"
#include "accelerate/optim/schedules/constant.hpp"
#include "accelerate/optim/schedules/constant_with_warmup.hpp"
#include "accelerate/optim/schedules/cosine_annealing.hpp"
#include "accelerate/optim/schedules/cosine_warm_restarts.hpp"
#include "accelerate/optim/schedules/cosine_with_hard_restarts_with_warmup.hpp"
#include "accelerate/optim/schedules/cosine_with_warmup.hpp"
#include "accelerate/optim/schedules/cyclic.hpp"
#include "accelerate/optim/schedules/exponential.hpp"
#include "accelerate/optim/schedules/inverse_sqrt.hpp"
#include "accelerate/optim/schedules/lambda.hpp"
#include "accelerate/optim/schedules/linear.hpp"
#include "accelerate/optim/schedules/linear_with_warmup.hpp"
#include "accelerate/optim/schedules/multi_step.hpp"
#include "accelerate/optim/schedules/one_cycle.hpp"
#include "accelerate/optim/schedules/polynomial.hpp"
#include "accelerate/optim/schedules/polynomial_with_warmup.hpp"
#include "accelerate/optim/schedules/reduce_on_plateau.hpp"
#include "accelerate/optim/schedules/scheduler_state.hpp"
#include "accelerate/optim/schedules/sequential.hpp"
#include "accelerate/optim/schedules/step.hpp"

namespace {

using namespace accelerate::optim;
using nlohmann::json;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;

template <typename Stock, typename Options>
std::unique_ptr<Optimizer> make(const json& one, const Options& defaults) {
  std::vector<OptimizerParamGroup> groups;
  for (const double lr : one.at("lrs")) {
    auto options = std::make_unique<Options>(defaults);
    options->lr(lr);
    groups.emplace_back(std::vector<at::Tensor>{at::zeros({1})}, std::move(options));
  }
  return std::make_unique<Stock>(groups, defaults);
}

std::unique_ptr<Optimizer> optimizer_of(const json& one) {
  using namespace torch::optim;
  const std::string kind = one.at("optimizer");
  const double lr = one.at("default_lr");
  if (kind == "SGD") return make<SGD>(one, SGDOptions(lr).momentum(0.9));
  if (kind == "RMSprop") return make<RMSprop>(one, RMSpropOptions(lr).momentum(0.9));
  if (kind == "Adam") return make<Adam>(one, AdamOptions(lr));
  return make<AdamW>(one, AdamWOptions(lr));
}

double momentum_of(const OptimizerParamGroup& group) {
  using namespace torch::optim;
  const auto& options = group.options();
  if (const auto* sgd = dynamic_cast<const SGDOptions*>(&options)) return sgd->momentum();
  if (const auto* rmsprop = dynamic_cast<const RMSpropOptions*>(&options)) return rmsprop->momentum();
  if (const auto* adam = dynamic_cast<const AdamOptions*>(&options)) return std::get<0>(adam->betas());
  return std::get<0>(dynamic_cast<const AdamWOptions&>(options).betas());
}

PerGroup per_group(const json& args, const char* key, double otherwise) {
  if (!args.contains(key)) return otherwise;
  return args[key].is_array() ? PerGroup(args[key].get<std::vector<double>>()) : PerGroup(args[key].get<double>());
}

Scheduler::Factor factor_of(const std::string& name) {
  if (name == "linear") return [](int64_t steps) { return 1.0 - static_cast<double>(steps) / 50.0; };
  return [](int64_t steps) { return std::pow(0.95, static_cast<double>(steps)); };
}

Scheduler lambda(Optimizer& optimizer, const json& args) {
  if (args.at("factors").is_string()) return LambdaLR(optimizer, factor_of(args["factors"]));
  std::vector<Scheduler::Factor> factors;
  for (const auto& name : args["factors"]) factors.push_back(factor_of(name));
  return LambdaLR(optimizer, factors);
}

Scheduler cyclic(Optimizer& optimizer, const json& args) {
  const std::map<std::string, CyclicMode> modes{{"triangular", CyclicMode::triangular},
                                                {"triangular2", CyclicMode::triangular2},
                                                {"exp_range", CyclicMode::exp_range}};
  CyclicOptions options{.step_size_up = args.at("step_size_up"),
                        .mode = modes.at(args.value("mode", "triangular")),
                        .gamma = args.value("gamma", 1.0),
                        .cycle_momentum = args.value("cycle_momentum", true),
                        .base_momentum = per_group(args, "base_momentum", 0.8),
                        .max_momentum = per_group(args, "max_momentum", 0.9)};
  if (args.contains("step_size_down")) options.step_size_down = args["step_size_down"].get<int64_t>();
  if (args.contains("scale_fn")) options.scale_fn = [](double x) { return 1 / (1 + x); };
  if (args.value("scale_mode", "cycle") == "iterations") options.scale_mode = CyclicScale::iterations;
  return CyclicLR(optimizer, per_group(args, "base_lr", 0), per_group(args, "max_lr", 0), options);
}

Scheduler one_cycle(Optimizer& optimizer, const json& args) {
  const bool linear = args.value("anneal_strategy", "cos") == "linear";
  return OneCycleLR(optimizer, per_group(args, "max_lr", 0), args.at("total_steps"),
                    {.pct_start = args.value("pct_start", 0.3),
                     .anneal_strategy = linear ? AnnealStrategy::linear : AnnealStrategy::cos,
                     .cycle_momentum = args.value("cycle_momentum", true),
                     .base_momentum = per_group(args, "base_momentum", 0.85),
                     .max_momentum = per_group(args, "max_momentum", 0.95),
                     .div_factor = args.value("div_factor", 25.0),
                     .final_div_factor = args.value("final_div_factor", 1e4),
                     .three_phase = args.value("three_phase", false)});
}

Scheduler make_schedule(Optimizer& optimizer, const json& spec);

std::vector<Scheduler> parts_of(Optimizer& optimizer, const json& args) {
  std::vector<Scheduler> parts;
  for (const auto& part : args.at("schedules")) parts.push_back(make_schedule(optimizer, part));
  return parts;
}

Scheduler inverse_sqrt(Optimizer& optimizer, const json& args) {
  if (!args.contains("timescale")) return get_inverse_sqrt_schedule(optimizer, args.at("num_warmup_steps"));
  return get_inverse_sqrt_schedule(optimizer, args.at("num_warmup_steps"), args["timescale"].get<int64_t>());
}

using Maker = std::function<Scheduler(Optimizer&, const json&)>;

const std::map<std::string, Maker> torch_makers{
    {"ConstantLR", [](auto& o, auto& a) { return ConstantLR(o, a.at("factor"), a.at("total_iters")); }},
    {"StepLR", [](auto& o, auto& a) { return StepLR(o, a.at("step_size"), a.at("gamma")); }},
    {"MultiStepLR", [](auto& o, auto& a) { return MultiStepLR(o, a.at("milestones"), a.at("gamma")); }},
    {"ExponentialLR", [](auto& o, auto& a) { return ExponentialLR(o, a.at("gamma")); }},
    {"LinearLR",
     [](auto& o, auto& a) { return LinearLR(o, a.at("start_factor"), a.at("end_factor"), a.at("total_iters")); }},
    {"PolynomialLR", [](auto& o, auto& a) { return PolynomialLR(o, a.at("total_iters"), a.at("power")); }},
    {"CosineAnnealingLR", [](auto& o, auto& a) { return CosineAnnealingLR(o, a.at("T_max"), a.at("eta_min")); }},
    {"CosineAnnealingWarmRestarts",
     [](auto& o, auto& a) { return CosineAnnealingWarmRestarts(o, a.at("T_0"), a.at("T_mult"), a.at("eta_min")); }},
    {"LambdaLR", lambda},
    {"CyclicLR", cyclic},
    {"OneCycleLR", one_cycle},
    {"SequentialLR", [](auto& o, auto& a) { return SequentialLR(o, parts_of(o, a), a.at("milestones")); }},
    {"ChainedScheduler", [](auto& o, auto& a) { return ChainedScheduler(parts_of(o, a)); }}};

int64_t warmup(const json& args) { return args.at("num_warmup_steps"); }
int64_t training(const json& args) { return args.at("num_training_steps"); }

const std::map<std::string, Maker> transformers_makers{
    {"get_constant_schedule", [](auto& o, auto&) { return get_constant_schedule(o); }},
    {"get_constant_schedule_with_warmup",
     [](auto& o, auto& a) { return get_constant_schedule_with_warmup(o, warmup(a)); }},
    {"get_linear_schedule_with_warmup",
     [](auto& o, auto& a) { return get_linear_schedule_with_warmup(o, warmup(a), training(a)); }},
    {"get_cosine_schedule_with_warmup",
     [](auto& o, auto& a) { return get_cosine_schedule_with_warmup(o, warmup(a), training(a), a.at("num_cycles")); }},
    {"get_cosine_with_hard_restarts_schedule_with_warmup",
     [](auto& o, auto& a) {
       return get_cosine_with_hard_restarts_schedule_with_warmup(o, warmup(a), training(a), a.at("num_cycles"));
     }},
    {"get_polynomial_decay_schedule_with_warmup",
     [](auto& o, auto& a) {
       return get_polynomial_decay_schedule_with_warmup(o, warmup(a), training(a), a.at("lr_end"), a.at("power"));
     }},
    {"get_inverse_sqrt_schedule", inverse_sqrt}};

Scheduler make_schedule(Optimizer& optimizer, const json& spec) {
  const auto& makers = torch_makers.contains(spec.at("schedule")) ? torch_makers : transformers_makers;
  return makers.at(spec["schedule"])(optimizer, spec.at("args"));
}

ReduceLROnPlateau make_plateau(Optimizer& optimizer, const json& spec) {
  const json& args = spec.at("args");
  return ReduceLROnPlateau(
      optimizer,
      {.mode = args.value("mode", "min") == "max" ? PlateauMode::max : PlateauMode::min,
       .factor = args.value("factor", 0.1),
       .patience = args.value("patience", 10),
       .threshold = args.value("threshold", 1e-4),
       .threshold_mode = args.value("threshold_mode", "rel") == "abs" ? ThresholdMode::abs : ThresholdMode::rel,
       .cooldown = args.value("cooldown", 0),
       .min_lr = per_group(args, "min_lr", 0),
       .eps = args.value("eps", 1e-8)});
}

struct Course {
  json lrs = json::array(), momenta = json::array();

  void note(const Optimizer& optimizer) {
    std::vector<double> rates, momentum;
    for (const auto& group : optimizer.param_groups()) {
      rates.push_back(group.options().get_lr());
      momentum.push_back(momentum_of(group));
    }
    lrs.push_back(rates);
    momenta.push_back(momentum);
  }
};

/// \param move  move(schedule, n) runs step n.
template <typename Make, typename Move>
json run(const json& one, int64_t steps, const Make& make_one, const Move& move) {
  auto optimizer = optimizer_of(one);
  auto schedule = std::make_unique<std::decay_t<decltype(make_one(*optimizer, one))>>(make_one(*optimizer, one));
  Course course;
  course.note(*optimizer);
  for (int64_t step = 1; step <= steps; ++step) {
    move(*schedule, step);
    const auto by_hand = one.value("set_lr", json::object());
    if (by_hand.contains(std::to_string(step))) {
      for (auto& group : optimizer->param_groups()) group.options().set_lr(by_hand[std::to_string(step)]);
    }
    if (step == steps / 2) {
      const std::string saved = json(schedule->state()).dump();
      auto another = optimizer_of(one);
      schedule = std::make_unique<std::decay_t<decltype(*schedule)>>(make_one(*another, one));
      schedule->load_state(scheduler_state_from_json(json::parse(saved)));
      optimizer = std::move(another);
    }
    course.note(*optimizer);
  }
  return {{"lrs", course.lrs}, {"momenta", course.momenta}};
}

json run(const json& one) {
  if (one.at("schedule") != "ReduceLROnPlateau") {
    return run(one, one.at("steps"), make_schedule, [](Scheduler& schedule, int64_t) { schedule.step(); });
  }
  const std::vector<double> metrics = one.at("metrics");
  return run(one, static_cast<int64_t>(metrics.size()), make_plateau, [&](ReduceLROnPlateau& schedule, int64_t step) {
    schedule.step(metrics.at(static_cast<size_t>(step - 1)));
  });
}

}  // namespace

int main() {
  json results = json::array();
  for (const auto& one : json::parse(std::cin)) results.push_back(run(one));
  std::cout << results.dump() << "\n";
}
