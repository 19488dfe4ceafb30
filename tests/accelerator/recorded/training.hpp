// SPDX-License-Identifier: Apache-2.0
// A deterministic training of which an old version recorded checkpoints. Uses only calls that version 0.1 has, too.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "accelerate/accelerate.hpp"

namespace recorded {

/// [N, 4] -> [N, 2] in float64, with parameters and a buffer that are computed, not drawn.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    double start = 0;
    for (auto& parameter : parameters()) {
      parameter.copy_(torch::cos(torch::arange(parameter.numel(), torch::kDouble) + start).view_as(parameter));
      start += 1;
    }
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::tanh(norm(first(x)))); }

  // A bias before the norm has a gradient of rounding errors, of which AdamW makes steps.
  torch::nn::Linear first{register_module("first", torch::nn::Linear(torch::nn::LinearOptions(4, 3).bias(false)))};
  torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(3))};
  torch::nn::Linear last{register_module("last", torch::nn::Linear(3, 2))};
};
TORCH_MODULE(Net);

/// A registered object.
struct Counter {
  int64_t seen = 0;
  [[nodiscard]] std::string state() const { return std::to_string(seen); }
  void load_state(const std::string& state) { seen = std::stoll(state); }
};

struct Result {
  std::map<std::string, torch::Tensor> tensors;  // parameters and buffers
  double rate = 0;
  int64_t seen = 0;
};

constexpr int64_t kSavedStep = 5;  // in the middle of an epoch, on 1 and on 2 ranks
constexpr int64_t kLastStep = 12;

/// Trains up to `last_step` optimizer steps, each of 2 micro-batches of 3 samples per rank.
///
/// \param load  Loads a checkpoint and returns its step and epoch, or {0, 0} without one.
/// \param save  Called after kSavedStep.
inline Result train(accelerate::Accelerator& accelerator, int64_t last_step,
                    const std::function<std::pair<int64_t, int64_t>()>& load, const std::function<void()>& save) {
  accelerator.set_seed(5);
  const Net net;
  const auto inputs = torch::sin(torch::arange(24 * 4, torch::kDouble)).view({24, 4});
  const auto targets = torch::arange(24) % 2;
  auto data = accelerate::data::from_tensors(inputs, targets, {.batch_size = 3, .shuffle = true});
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.05).weight_decay(0.1));
  accelerate::optim::StepLR decay(adamw, 2, 0.5);
  auto [model, optimizer, loader, scheduler] = accelerator.prepare(net, adamw, data, decay);
  Counter counter;
  accelerator.register_for_checkpointing(counter);

  auto [step, epoch] = load();
  for (; step < last_step; ++epoch) {
    for (auto& [x, y] : loader) {
      const auto window = accelerator.accumulate(model);
      optimizer.zero_grad();
      accelerator.backward(torch::cross_entropy_loss(model(x), y));
      optimizer.step();
      scheduler.step();
      counter.seen += x.size(0);
      if (!accelerator.sync_gradients()) continue;
      if (++step == kSavedStep) save();
      if (step == last_step) break;
    }
  }
  Result result;
  result.rate = adamw.param_groups()[0].options().get_lr();
  result.seen = counter.seen;
  for (const auto& one : net->named_parameters()) result.tensors[one.key()] = one.value().detach().clone();
  for (const auto& one : net->named_buffers()) result.tensors[one.key()] = one.value().clone();
  return result;
}

}  // namespace recorded
