// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "accelerate/trainer/callback.hpp"

namespace accelerate::trainer {

/// Hands what is logged from the first train() on to the trackers of report_to, with transformers' names: "train/loss",
/// "eval/accuracy". Every Trainer that has trackers has one.
class ReportCallback final : public TrainerCallback {
 public:
  /// Throws Error (io) on every rank for a folder that cannot be written.
  void on_train_begin(const TrainerContext& now, TrainerControl& control) override;
  void on_log(const TrainerContext& now, TrainerControl& control) override;
  [[nodiscard]] bool decides_alike() const override { return true; }

 private:
  bool begun_ = false;
};

/// "eval_loss" as "eval/loss", "test_loss" as "test/loss", all else behind "train/".
[[nodiscard]] std::string reported_name(const std::string& name);

}  // namespace accelerate::trainer
