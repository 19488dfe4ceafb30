// SPDX-License-Identifier: Apache-2.0
#include "accelerate/trainer/best_model.hpp"

#include <ATen/core/grad_mode.h>

#include "accelerate/trainer/best_metric.hpp"
#include "accelerate/trainer/trainer_base.hpp"

namespace accelerate::trainer {

void BestModelCallback::on_train_begin(const TrainerContext& now, TrainerControl&) {
  require_evaluation(now.arguments, "BestModelCallback");
  kept_.clear();
}

void BestModelCallback::on_evaluate(const TrainerContext& now, TrainerControl&) {
  static_cast<void>(metric_of(now.metrics, best_metric_name(now.arguments), "BestModelCallback"));
  if (now.state.best_global_step != now.state.global_step) return;
  const at::NoGradGuard no_grad;
  kept_.clear();  // before the new copy is made: one of them at a time
  for (const auto& item : now.trainer.state_dict()) kept_.emplace_back(item.key(), item.value().clone());
}

void BestModelCallback::on_train_end(const TrainerContext& now, TrainerControl&) {
  const at::NoGradGuard no_grad;
  const auto state = now.trainer.state_dict();
  for (const auto& [name, tensor] : kept_) state[name].copy_(tensor);
  kept_.clear();
}

}  // namespace accelerate::trainer
