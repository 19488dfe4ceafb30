// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

#include "accelerate/trainer/callback.hpp"

namespace accelerate::trainer {

/// Prints the plan when training begins, and one line per log, on the main process. It is every Trainer's last
/// callback; trainer.remove_callback<PrinterCallback>() removes it.
class PrinterCallback final : public TrainerCallback {
 public:
  /// \param write  Receives lines with their newlines. If empty, they are written to stdout.
  explicit PrinterCallback(std::function<void(std::string_view)> write = {});

  void on_train_begin(const TrainerContext& now, TrainerControl& control) override;
  void on_log(const TrainerContext& now, TrainerControl& control) override;
  [[nodiscard]] bool decides_same_on_all_ranks() const override { return true; }

 private:
  std::function<void(std::string_view)> write_;
};

}  // namespace accelerate::trainer
