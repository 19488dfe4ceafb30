// SPDX-License-Identifier: Apache-2.0
#include "accelerate/trainer/early_stopping.hpp"

#include <ATen/ops/scalar_tensor.h>

#include <cmath>

#include "accelerate/trainer/best_metric.hpp"
#include "accelerate/trainer/trainer_base.hpp"

namespace accelerate::trainer {

EarlyStoppingCallback::EarlyStoppingCallback(int64_t patience, double threshold)
    : patience_(patience), threshold_(threshold) {
  if (patience < 1) {
    base::fail(ErrorKind::usage, {}, "EarlyStoppingCallback", "patience is {}, must be at least 1", patience);
  }
  if (!(threshold >= 0)) {
    base::fail(ErrorKind::usage, {}, "EarlyStoppingCallback", "threshold is {}, must be at least 0", threshold);
  }
}

void EarlyStoppingCallback::on_train_begin(const TrainerContext& now, TrainerControl&) {
  require_evaluation(now.arguments, "EarlyStoppingCallback", now.trainer.accelerator().place());
  no_better_ = 0;
  best_.reset();
}

void EarlyStoppingCallback::on_evaluate(const TrainerContext& now, TrainerControl& control) {
  if (!now.for_best) return;
  const double value = metric_of(now.metrics, best_metric_name(now.arguments), "EarlyStoppingCallback",
                                 now.trainer.accelerator().place());
  const bool better = is_better(now.arguments, value, best_);
  if (better && (!best_ || std::abs(value - *best_) > threshold_)) {
    no_better_ = 0;
  } else {
    ++no_better_;
  }
  if (better) best_ = value;
  if (no_better_ >= patience_) control.should_training_stop = true;
}

TrainerCallback::StateDict EarlyStoppingCallback::state_dict() const {
  StateDict state;
  state.insert("no_better", at::scalar_tensor(no_better_, at::kLong));
  if (best_) state.insert("best", at::scalar_tensor(*best_, at::kDouble));
  return state;
}

void EarlyStoppingCallback::load_state_dict(const StateDict& saved) {
  no_better_ = saved["no_better"].item<int64_t>();
  if (const auto* best = saved.find("best")) best_ = best->item<double>();
}

}  // namespace accelerate::trainer
