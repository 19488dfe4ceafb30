// SPDX-License-Identifier: Apache-2.0
#include "accelerate/trainer/best_model.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "accelerate/trainer/best_metric.hpp"
#include "accelerate/trainer/trainer_base.hpp"

namespace accelerate::trainer {
namespace {

constexpr std::string_view kBestKey = "best";  // key in state_dict(); names of weights have the prefix kWeightKey
constexpr std::string_view kWeightKey = "model.";

/// With full_shard only rank 0 has the values of a model. Sends them, one tensor at a time, if ranks have none.
void give_to_all_ranks(const Accelerator& accelerator, std::vector<std::pair<std::string, at::Tensor>>& values) {
  const auto& group = accelerator.group();
  if (group.size() == 1) return;
  const auto counts = group.all_gather_bytes(std::to_string(values.size()));
  if (std::ranges::all_of(counts, [&](const std::string& count) { return count == counts.front(); })) return;
  if (group.rank() != 0) values.resize(std::stoul(counts.front()));
  for (auto& [name, value] : values) {
    std::vector<char> own;
    if (group.rank() == 0) own = torch::jit::pickle_save(c10::ivalue::Tuple::create(name, value));
    const std::string bytes = group.broadcast_bytes(std::string(own.begin(), own.end()));
    const auto received = torch::jit::pickle_load({bytes.begin(), bytes.end()}).toTuple();
    name = received->elements()[0].toStringRef();
    value = received->elements()[1].toTensor();
  }
}

}  // namespace

void BestModelCallback::on_train_begin(const TrainerContext& now, TrainerControl&) {
  require_evaluation(now.arguments, "BestModelCallback", now.trainer.accelerator().place());
  best_.reset();
  kept_.clear();
}

void BestModelCallback::on_evaluate(const TrainerContext& now, TrainerControl&) {
  if (!now.for_best) return;
  const double value =
      metric_of(now.metrics, best_metric_name(now.arguments), "BestModelCallback", now.trainer.accelerator().place());
  if (!is_better(now.arguments, value, best_)) return;
  best_ = value;
  const at::NoGradGuard no_grad;
  kept_.clear();  // before the next copy, so that memory holds only one
  for (const auto& item : now.trainer.state_dict()) kept_.emplace_back(item.key(), item.value().clone());
}

void BestModelCallback::on_train_end(const TrainerContext& now, TrainerControl&) {
  give_to_all_ranks(now.trainer.accelerator(), kept_);
  now.trainer.set_state(kept_);
  kept_.clear();
  best_.reset();
}

TrainerCallback::StateDict BestModelCallback::state_dict() const {
  StateDict state;
  if (!best_) return state;
  state.insert(std::string(kBestKey), at::scalar_tensor(*best_, at::kDouble));
  for (const auto& [name, tensor] : kept_) state.insert(std::string(kWeightKey) + name, tensor);
  return state;
}

void BestModelCallback::load_state_dict(const StateDict& saved) {
  for (const auto& item : saved) {
    if (item.key() == kBestKey) {
      best_ = item.value().item<double>();
    } else {
      kept_.emplace_back(item.key().substr(kWeightKey.size()), item.value());
    }
  }
}

}  // namespace accelerate::trainer
