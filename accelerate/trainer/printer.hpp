// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

#include "accelerate/trainer/callback.hpp"

namespace accelerate::trainer {

/// Prints the plan when a training begins, and what is logged, a line each; on the main process. Every Trainer has one,
/// after all others: trainer.remove_callback<PrinterCallback>() makes it silent.
class PrinterCallback final : public TrainerCallback {
 public:
  /// write   takes lines, newlines included. Empty: they go to stdout.
  explicit PrinterCallback(std::function<void(std::string_view)> write = {});

  void on_train_begin(const TrainerContext& now, TrainerControl& control) override;
  void on_log(const TrainerContext& now, TrainerControl& control) override;
  [[nodiscard]] bool decides_alike() const override { return true; }

 private:
  std::function<void(std::string_view)> write_;
};

}  // namespace accelerate::trainer
