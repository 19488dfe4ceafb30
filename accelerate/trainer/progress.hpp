// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "accelerate/progress.hpp"
#include "accelerate/trainer/callback.hpp"

namespace accelerate::trainer {

/// A bar of the training's steps on stderr, and below it one of an evaluation's batches; on the main process. Every
/// Trainer has one, but with disable_tqdm.
class ProgressCallback final : public TrainerCallback {
 public:
  /// options   of both bars; total and leave are the callback's own
  explicit ProgressCallback(ProgressOptions options = {});

  void on_train_begin(const TrainerContext& now, TrainerControl& control) override;
  /// The bar of steps begins: below what is printed at the start.
  void on_epoch_begin(const TrainerContext& now, TrainerControl& control) override;
  void on_step_end(const TrainerContext& now, TrainerControl& control) override;
  void on_prediction_step(const TrainerContext& now, TrainerControl& control) override;
  /// Makes room for the line that another callback may print.
  void on_log(const TrainerContext& now, TrainerControl& control) override;
  void on_evaluate(const TrainerContext& now, TrainerControl& control) override;
  void on_predict(const TrainerContext& now, TrainerControl& control) override;
  void on_train_end(const TrainerContext& now, TrainerControl& control) override;
  [[nodiscard]] bool decides_alike() const override { return true; }

 private:
  [[nodiscard]] std::unique_ptr<ProgressBar> bar(const TrainerContext& now, int64_t total, bool leave) const;

  ProgressOptions options_;
  std::unique_ptr<ProgressBar> training_, evaluation_;
  int64_t shown_ = 0;
};

}  // namespace accelerate::trainer
