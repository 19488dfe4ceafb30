// SPDX-License-Identifier: Apache-2.0
// Length of a training in steps and epochs, and its summary.
#pragma once

#include <cstdint>
#include <string>

#include "accelerate/trainer/arguments.hpp"
#include "accelerate/trainer/state.hpp"

namespace accelerate::trainer {

/// Sizes that determine a plan, in addition to the arguments.
struct TrainingSize {
  int64_t examples = 0;
  /// Batches of this rank per epoch.
  int64_t batches = 0;
  /// Samples per micro-batch over all ranks.
  int64_t batch_of_all_ranks = 0;
  int64_t gradient_accumulation_steps = 1;
  int64_t trainable_parameters = 0;
};

struct TrainingPlan {
  TrainingSize size{};
  int64_t per_device_batch_size = 0;
  /// Optimizer steps per epoch, including one for a short last window.
  int64_t steps_per_epoch = 0;
  int64_t num_train_epochs = 0;
  int64_t max_steps = 0;
  int64_t warmup_steps = 0;

  [[nodiscard]] int64_t total_batch_size() const { return size.batch_of_all_ranks * size.gradient_accumulation_steps; }
};

/// \throws Error (usage) if the training set has no batches.
[[nodiscard]] TrainingPlan plan_training(const TrainingArguments& arguments, const TrainingSize& size,
                                         const RankContext& place = {});

/// Returns the lines that transformers logs at the start: "***** Running training *****" and the numbers.
[[nodiscard]] std::string summary(const TrainingPlan& plan);

/// Formats metrics as Python prints a dictionary: "{'epoch': 1.0, 'loss': 0.25}".
[[nodiscard]] std::string text_of(const Metrics& metrics);

/// Returns {prefix}_runtime in seconds, {prefix}_samples_per_second and {prefix}_steps_per_second.
[[nodiscard]] Metrics speed_metrics(const std::string& prefix, double seconds, int64_t samples, int64_t steps);

}  // namespace accelerate::trainer
