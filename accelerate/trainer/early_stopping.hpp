// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "accelerate/trainer/callback.hpp"

namespace accelerate::trainer {

/// Ends training after `patience` consecutive evaluations that were no better than the best one before them, by
/// metric_for_best_model. Only evaluations with TrainerContext::for_best count. A resumed training continues the count.
class EarlyStoppingCallback final : public TrainerCallback {
 public:
  /// \param threshold  Improvement that an evaluation must exceed to reset the count.
  /// \throws Error (usage) if patience is below 1 or the threshold is negative or NaN.
  explicit EarlyStoppingCallback(int64_t patience = 1, double threshold = 0.0);

  /// \throws Error (usage) if eval_strategy is `no`.
  void on_train_begin(const TrainerContext& now, TrainerControl& control) override;
  /// \throws Error (usage) with the available names if the metric is missing.
  void on_evaluate(const TrainerContext& now, TrainerControl& control) override;
  [[nodiscard]] bool decides_same_on_all_ranks() const override { return true; }
  [[nodiscard]] StateDict state_dict() const override;
  void load_state_dict(const StateDict& saved) override;

 private:
  int64_t patience_;
  double threshold_;
  int64_t no_better_ = 0;
  std::optional<double> best_{};
};

}  // namespace accelerate::trainer
