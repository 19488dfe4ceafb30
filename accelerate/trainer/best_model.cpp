// SPDX-License-Identifier: Apache-2.0
#include "accelerate/trainer/best_model.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>

#include <string_view>

#include "accelerate/trainer/best_metric.hpp"
#include "accelerate/trainer/trainer_base.hpp"

namespace accelerate::trainer {
namespace {

constexpr std::string_view kBestKey = "best";  // key in state_dict(); names of weights have the prefix kWeightKey
constexpr std::string_view kWeightKey = "model.";

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
