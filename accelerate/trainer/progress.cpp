// SPDX-License-Identifier: Apache-2.0
#include "accelerate/trainer/progress.hpp"

#include <unistd.h>

#include <string_view>
#include <utility>

namespace accelerate::trainer {

ProgressCallback::ProgressCallback(ProgressOptions options) : options_(std::move(options)) {}

std::unique_ptr<ProgressBar> ProgressCallback::bar(const TrainerContext& now, int64_t total, bool leave) const {
  ProgressOptions options = options_;
  options.total = total;
  options.leave = leave;
  options.disable = options.disable || (options.main_process_only && !now.state.is_world_process_zero);
  return std::make_unique<ProgressBar>(options);
}

void ProgressCallback::on_train_begin(const TrainerContext&, TrainerControl&) {
  evaluation_.reset();  // from a training that threw
  training_.reset();
}

void ProgressCallback::on_epoch_begin(const TrainerContext& now, TrainerControl&) {
  if (training_) return;
  training_ = bar(now, now.state.max_steps, options_.leave);
  shown_ = now.state.global_step;
  if (shown_ > 0) training_->update(shown_);  // steps before the resume
}

void ProgressCallback::on_step_end(const TrainerContext& now, TrainerControl&) {
  if (training_) training_->update(now.state.global_step - std::exchange(shown_, now.state.global_step));
}

void ProgressCallback::on_prediction_step(const TrainerContext& now, TrainerControl&) {
  if (!evaluation_) evaluation_ = bar(now, now.state.prediction_steps, !training_ && options_.leave);
  evaluation_->update();
}

void ProgressCallback::on_log(const TrainerContext& now, TrainerControl&) {
  evaluation_.reset();  // a logged evaluation has ended
  const bool shows = training_ && !options_.disable && now.state.is_world_process_zero;
  if (!shows || ::isatty(options_.output) != 1) return;
  constexpr std::string_view erased = "\r\x1b[K";
  static_cast<void>(!::write(options_.output, erased.data(), erased.size()));
}

void ProgressCallback::on_evaluate(const TrainerContext&, TrainerControl&) { evaluation_.reset(); }
void ProgressCallback::on_predict(const TrainerContext&, TrainerControl&) { evaluation_.reset(); }
void ProgressCallback::on_train_end(const TrainerContext&, TrainerControl&) { training_.reset(); }

}  // namespace accelerate::trainer
