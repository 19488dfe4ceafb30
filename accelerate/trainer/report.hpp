// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "accelerate/trainer/callback.hpp"

namespace accelerate::trainer {

/// Sends logs from the first train() on to the trackers, with transformers' names: "train/loss", "eval/accuracy". Every
/// Trainer with trackers has one.
class ReportCallback final : public TrainerCallback {
 public:
  /// \throws Error (io) on every rank if the folder cannot be written; on a single rank the tracker's own exception.
  void on_train_begin(const TrainerContext& now, TrainerControl& control) override;
  void on_log(const TrainerContext& now, TrainerControl& control) override;
  [[nodiscard]] bool decides_same_on_all_ranks() const override { return true; }

 private:
  bool begun_ = false;
};

/// Converts "eval_loss" to "eval/loss" and "test_loss" to "test/loss". Other names get the prefix "train/".
[[nodiscard]] std::string reported_name(const std::string& name);

}  // namespace accelerate::trainer
