// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "accelerate/progress.hpp"
#include "accelerate/trainer/callback.hpp"

namespace accelerate::trainer {

/// Shows a progress bar of training steps on stderr, and one of an evaluation's batches below it, on the main process.
/// Every Trainer has one unless disable_tqdm is true.
class ProgressCallback final : public TrainerCallback {
 public:
  /// \param options  For both bars; the callback sets `total`. An evaluation's bar within training ignores `leave`.
  explicit ProgressCallback(ProgressOptions options = {});

  void on_train_begin(const TrainerContext& now, TrainerControl& control) override;
  /// Starts the bar of steps, below the lines that are printed at the start of training.
  void on_epoch_begin(const TrainerContext& now, TrainerControl& control) override;
  void on_step_end(const TrainerContext& now, TrainerControl& control) override;
  void on_prediction_step(const TrainerContext& now, TrainerControl& control) override;
  /// Erases the bar, because another callback may print a line.
  void on_log(const TrainerContext& now, TrainerControl& control) override;
  void on_evaluate(const TrainerContext& now, TrainerControl& control) override;
  void on_predict(const TrainerContext& now, TrainerControl& control) override;
  void on_train_end(const TrainerContext& now, TrainerControl& control) override;
  [[nodiscard]] bool decides_same_on_all_ranks() const override { return true; }

 private:
  [[nodiscard]] std::unique_ptr<ProgressBar> bar(const TrainerContext& now, int64_t total, bool leave) const;

  ProgressOptions options_;
  std::unique_ptr<ProgressBar> training_, evaluation_;
  int64_t shown_ = 0;
};

}  // namespace accelerate::trainer
