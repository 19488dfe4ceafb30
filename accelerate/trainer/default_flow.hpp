// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "accelerate/trainer/callback.hpp"

namespace accelerate::trainer {

/// Asks for what TrainingArguments say: logs, evaluations, the end. Every Trainer has it, before all others.
class DefaultFlowCallback final : public TrainerCallback {
 public:
  void on_step_end(const TrainerContext& now, TrainerControl& control) override;
  void on_epoch_end(const TrainerContext& now, TrainerControl& control) override;
  [[nodiscard]] bool decides_alike() const override { return true; }
};

}  // namespace accelerate::trainer
