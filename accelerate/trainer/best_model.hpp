// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "accelerate/trainer/callback.hpp"

namespace accelerate::trainer {

/// Keeps a copy of the model as it was at its best evaluation, by metric_for_best_model, and puts it back when the
/// training ends. The copy lies beside the model, on its device: parameters and buffers, no optimizer.
class BestModelCallback final : public TrainerCallback {
 public:
  /// Throws Error (usage) where nothing is evaluated.
  void on_train_begin(const TrainerContext& now, TrainerControl& control) override;
  /// Throws Error (usage) where the metric is missing, with those that there are.
  void on_evaluate(const TrainerContext& now, TrainerControl& control) override;
  void on_train_end(const TrainerContext& now, TrainerControl& control) override;
  [[nodiscard]] bool decides_alike() const override { return true; }

 private:
  std::vector<std::pair<std::string, at::Tensor>> kept_;
};

}  // namespace accelerate::trainer
