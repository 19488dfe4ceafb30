// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "accelerate/trainer/callback.hpp"

namespace accelerate::trainer {

/// Requests the logs, evaluations, checkpoints and the end that TrainingArguments specify. It is every Trainer's first
/// callback.
class DefaultFlowCallback final : public TrainerCallback {
 public:
  void on_step_end(const TrainerContext& now, TrainerControl& control) override;
  void on_epoch_end(const TrainerContext& now, TrainerControl& control) override;
  [[nodiscard]] bool decides_same_on_all_ranks() const override { return true; }
};

}  // namespace accelerate::trainer
