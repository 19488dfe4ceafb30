// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "accelerate/trainer/callback.hpp"

namespace accelerate::trainer {

/// Ends the training when `patience` evaluations in a row were no better than the best before them, by
/// metric_for_best_model. Evaluations of other data sets, and outside of train(), do not count. A training that is
/// resumed goes on counting where it stood.
class EarlyStoppingCallback final : public TrainerCallback {
 public:
  /// threshold   what an evaluation must be better by to count as better
  /// Throws Error (usage) for a patience below 1 and a threshold below 0.
  explicit EarlyStoppingCallback(int64_t patience = 1, double threshold = 0.0);

  /// Throws Error (usage) where nothing is evaluated.
  void on_train_begin(const TrainerContext& now, TrainerControl& control) override;
  /// Throws Error (usage) where the metric is missing, with those that there are.
  void on_evaluate(const TrainerContext& now, TrainerControl& control) override;
  [[nodiscard]] bool decides_alike() const override { return true; }
  [[nodiscard]] StateDict state_dict() const override;
  void load_state_dict(const StateDict& saved) override;

 private:
  int64_t patience_;
  double threshold_;
  int64_t no_better_ = 0;
  std::optional<double> best_{};
};

}  // namespace accelerate::trainer
