// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/trainer/callback.hpp"

namespace accelerate::trainer {

/// Keeps a copy of the weights of the best evaluation by metric_for_best_model, and restores them when training ends.
/// Only evaluations with TrainerContext::for_best count. The copy has the parameters and buffers, not the optimizer,
/// and is on the model's device. Checkpoints contain it; after a resume it is on the CPU. If a checkpoint lacks it,
/// only later evaluations count.
class BestModelCallback final : public TrainerCallback {
 public:
  /// \throws Error (usage) if eval_strategy is `no`.
  void on_train_begin(const TrainerContext& now, TrainerControl& control) override;
  /// \throws Error (usage) with the available names if the metric is missing.
  void on_evaluate(const TrainerContext& now, TrainerControl& control) override;
  void on_train_end(const TrainerContext& now, TrainerControl& control) override;
  [[nodiscard]] bool decides_same_on_all_ranks() const override { return true; }
  [[nodiscard]] StateDict state_dict() const override;
  void load_state_dict(const StateDict& saved) override;

 private:
  std::optional<double> best_;
  std::vector<std::pair<std::string, at::Tensor>> kept_;
};

}  // namespace accelerate::trainer
