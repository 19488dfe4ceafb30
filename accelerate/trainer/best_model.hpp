// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/trainer/callback.hpp"

namespace accelerate::trainer {

/// Keeps a copy of the model as it was at its best evaluation, by metric_for_best_model, and puts it back when the
/// training ends. Evaluations of other data sets, and outside of train(), do not count. The copy lies beside the model,
/// on its device: parameters and buffers, no optimizer. Checkpoints hold it too, so that a training that is resumed has
/// it, on the CPU; resumed from one without it, the best is that of the evaluations from there on.
class BestModelCallback final : public TrainerCallback {
 public:
  /// Throws Error (usage) where nothing is evaluated.
  void on_train_begin(const TrainerContext& now, TrainerControl& control) override;
  /// Throws Error (usage) where the metric is missing, with those that there are.
  void on_evaluate(const TrainerContext& now, TrainerControl& control) override;
  void on_train_end(const TrainerContext& now, TrainerControl& control) override;
  [[nodiscard]] bool decides_alike() const override { return true; }
  [[nodiscard]] StateDict state_dict() const override;
  void load_state_dict(const StateDict& saved) override;

 private:
  std::optional<double> best_;
  std::vector<std::pair<std::string, at::Tensor>> kept_;
};

}  // namespace accelerate::trainer
