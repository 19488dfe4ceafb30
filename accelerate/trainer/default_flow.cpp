// SPDX-License-Identifier: Apache-2.0
#include "accelerate/trainer/default_flow.hpp"

namespace accelerate::trainer {

void DefaultFlowCallback::on_step_end(const TrainerContext& now, TrainerControl& control) {
  const int64_t step = now.state.global_step;
  const auto& arguments = now.arguments;
  if (step == 1 && arguments.logging_first_step) control.should_log = true;
  if (arguments.logging_strategy == IntervalStrategy::steps && step % now.state.logging_steps == 0) {
    control.should_log = true;
  }
  const bool ends = step >= now.state.max_steps;
  if (arguments.eval_strategy == IntervalStrategy::steps && (ends || step % now.state.eval_steps == 0) &&
      arguments.eval_delay <= static_cast<double>(step)) {
    control.should_evaluate = true;
  }
  if (arguments.save_strategy == IntervalStrategy::steps && (ends || step % arguments.save_steps == 0)) {
    control.should_save = true;
  }
  if (ends) control.should_training_stop = true;
}

void DefaultFlowCallback::on_epoch_end(const TrainerContext& now, TrainerControl& control) {
  const auto& arguments = now.arguments;
  if (arguments.logging_strategy == IntervalStrategy::epoch) control.should_log = true;
  if (arguments.eval_strategy == IntervalStrategy::epoch && arguments.eval_delay <= now.state.epoch) {
    control.should_evaluate = true;
  }
  // If callbacks ended epochs early, the last step is before max_steps.
  const bool ends = arguments.max_steps <= 0 && now.state.epoch >= static_cast<double>(now.state.num_train_epochs);
  if (arguments.save_strategy == IntervalStrategy::epoch ||
      (arguments.save_strategy == IntervalStrategy::steps && ends)) {
    control.should_save = true;
  }
}

}  // namespace accelerate::trainer
