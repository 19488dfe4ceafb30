// SPDX-License-Identifier: Apache-2.0
// Private: options and state of each stock optimizer by the names that PyTorch saves (torch/optim/*.py, version 2.11).
// `fixed` are PyTorch options that LibTorch lacks, with LibTorch's constant behaviour.
#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <string_view>
#include <utility>
#include <vector>

#include "accelerate/state/optimizer_state.hpp"

namespace accelerate::optim {

using FixedOptions = std::vector<std::pair<std::string_view, state::OptionValue>>;

struct SgdFields {
  using Optimizer = torch::optim::SGD;
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;
  static constexpr std::string_view name = "SGD";
  template <typename Visit>
  static void options(Options& options, Visit&& visit) {
    visit("lr", options.lr());
    visit("momentum", options.momentum());
    visit("dampening", options.dampening());
    visit("weight_decay", options.weight_decay());
    visit("nesterov", options.nesterov());
  }
  template <typename Visit>
  static void state(State& state, Visit&& visit) {
    visit("momentum_buffer", state.momentum_buffer());
  }
  static FixedOptions fixed() {
    return {{"maximize", false}, {"foreach", {}}, {"differentiable", false}, {"fused", {}}};
  }
};

template <typename OfOptimizer, typename OfOptions, typename OfState>
struct AdamLikeFields {
  using Optimizer = OfOptimizer;
  using Options = OfOptions;
  using State = OfState;
  template <typename Visit>
  static void options(Options& options, Visit&& visit) {
    visit("lr", options.lr());
    visit("betas", options.betas());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("amsgrad", options.amsgrad());
  }
  template <typename Visit>
  static void state(State& state, Visit&& visit) {
    visit("step", state.step());
    visit("exp_avg", state.exp_avg());
    visit("exp_avg_sq", state.exp_avg_sq());
    visit("max_exp_avg_sq", state.max_exp_avg_sq());
  }
  static FixedOptions fixed(bool decoupled) {
    return {{"maximize", false},       {"foreach", {}}, {"capturable", false},
            {"differentiable", false}, {"fused", {}},   {"decoupled_weight_decay", decoupled}};
  }
};

struct AdamFields : AdamLikeFields<torch::optim::Adam, torch::optim::AdamOptions, torch::optim::AdamParamState> {
  static constexpr std::string_view name = "Adam";
  static FixedOptions fixed() { return AdamLikeFields::fixed(false); }
};

struct AdamWFields : AdamLikeFields<torch::optim::AdamW, torch::optim::AdamWOptions, torch::optim::AdamWParamState> {
  static constexpr std::string_view name = "AdamW";
  static FixedOptions fixed() { return AdamLikeFields::fixed(true); }
};

struct AdagradFields {
  using Optimizer = torch::optim::Adagrad;
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;
  static constexpr std::string_view name = "Adagrad";
  template <typename Visit>
  static void options(Options& options, Visit&& visit) {
    visit("lr", options.lr());
    visit("lr_decay", options.lr_decay());
    visit("weight_decay", options.weight_decay());
    visit("initial_accumulator_value", options.initial_accumulator_value());
    visit("eps", options.eps());
  }
  template <typename Visit>
  static void state(State& state, Visit&& visit) {
    visit("step", state.step());
    visit("sum", state.sum());
  }
  static FixedOptions fixed() {
    return {{"maximize", false}, {"foreach", {}}, {"differentiable", false}, {"fused", {}}};
  }
};

struct RmspropFields {
  using Optimizer = torch::optim::RMSprop;
  using Options = torch::optim::RMSpropOptions;
  using State = torch::optim::RMSpropParamState;
  static constexpr std::string_view name = "RMSprop";
  template <typename Visit>
  static void options(Options& options, Visit&& visit) {
    visit("lr", options.lr());
    visit("momentum", options.momentum());
    visit("alpha", options.alpha());
    visit("eps", options.eps());
    visit("centered", options.centered());
    visit("weight_decay", options.weight_decay());
  }
  template <typename Visit>
  static void state(State& state, Visit&& visit) {
    visit("step", state.step());
    visit("square_avg", state.square_avg());
    visit("momentum_buffer", state.momentum_buffer());
    visit("grad_avg", state.grad_avg());
  }
  static FixedOptions fixed() {
    return {{"maximize", false}, {"foreach", {}}, {"capturable", false}, {"differentiable", false}};
  }
};

/// Calls visit(Fields{}) for the type of the optimizer. Returns false if it is not exactly one of these types.
template <typename Visit>
bool visit_stock(const torch::optim::Optimizer& optimizer, Visit&& visit) {
  const auto one = [&]<typename Fields>(Fields fields) {
    if (typeid(optimizer) != typeid(typename Fields::Optimizer)) return false;
    visit(fields);
    return true;
  };
  return one(SgdFields{}) || one(AdamFields{}) || one(AdamWFields{}) || one(AdagradFields{}) || one(RmspropFields{});
}

}  // namespace accelerate::optim
