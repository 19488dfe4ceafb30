// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a training, and the weights of its best evaluation.
#include <system_error>

#include "accelerate/trainer/saved_state.hpp"
#include "accelerate/trainer/trainer_base.hpp"

namespace accelerate::trainer {

namespace fs = std::filesystem;

/// The Trainer's part of a checkpoint.
struct TrainerBase::SavedPart {
  TrainerState* of;
  [[nodiscard]] std::string state() const { return saved(*of); }
  void load_state(const std::string& text) const { load(*of, text); }
};

void TrainerBase::register_state() {
  saved_part_ = std::make_shared<SavedPart>(&state_);
  accelerator_.register_for_checkpointing(*saved_part_);
}

/// Where this run saves there is no other run's checkpoint.
void TrainerBase::check_output_dir() const {
  if (arguments_.save_strategy == IntervalStrategy::no || arguments_.resume_from_checkpoint || has_saved_) return;
  const fs::path folder = arguments_.output_dir / "checkpoints";
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored) || fs::is_empty(folder, ignored)) return;
  base::fail(ErrorKind::usage, accelerator_.place(), "train",
             "{} holds checkpoints of another run; set resume_from_checkpoint to go on with it, or another output_dir",
             folder.string());
}

/// Everything becomes what was saved, if a checkpoint was asked for.
void TrainerBase::resume() {
  if (!arguments_.resume_from_checkpoint) return;
  fs::path folder = *arguments_.resume_from_checkpoint;
  if (fs::is_directory(folder / "checkpoints")) folder /= "checkpoints";
  static_cast<void>(accelerator_.load_state(folder));
}

void TrainerBase::save_checkpoint() {
  static_cast<void>(accelerator_.save_state());
  has_saved_ = true;
  fire(&TrainerCallback::on_save);
}

void TrainerBase::keep_best() {
  if (arguments_.load_best_model_at_end) save_weights(arguments_.output_dir / "best_model");
}

void TrainerBase::bring_best_back() {
  if (arguments_.load_best_model_at_end && state_.best_metric) load_weights(arguments_.output_dir / "best_model");
}

void TrainerBase::save_model(const fs::path& folder) { save_weights(folder.empty() ? arguments_.output_dir : folder); }

}  // namespace accelerate::trainer
