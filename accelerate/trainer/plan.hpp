// SPDX-License-Identifier: Apache-2.0
// How long a training is, and how it says so.
#pragma once

#include <cstdint>
#include <string>

#include "accelerate/trainer/arguments.hpp"
#include "accelerate/trainer/state.hpp"

namespace accelerate::trainer {

/// What a plan needs to know beyond the arguments.
struct TrainingSize {
  int64_t examples = 0;
  /// Of this rank, in one pass.
  int64_t batches = 0;
  /// Samples that all ranks together take per micro-batch.
  int64_t batch_of_all_ranks = 0;
  int64_t gradient_accumulation_steps = 1;
  int64_t trainable_parameters = 0;
};

struct TrainingPlan {
  TrainingSize size{};
  int64_t per_device_batch_size = 0;
  /// Optimizer steps of one pass; a short last window is one too.
  int64_t steps_per_epoch = 0;
  int64_t num_train_epochs = 0;
  int64_t max_steps = 0;
  int64_t warmup_steps = 0;

  [[nodiscard]] int64_t total_batch_size() const { return size.batch_of_all_ranks * size.gradient_accumulation_steps; }
};

/// Throws Error (usage) for a training set without batches.
[[nodiscard]] TrainingPlan plan_training(const TrainingArguments& arguments, const TrainingSize& size,
                                         const Place& place = {});

/// "***** Running training *****" and what transformers says after it, a line each.
[[nodiscard]] std::string summary(const TrainingPlan& plan);

/// "{'epoch': 1.0, 'loss': 0.25}", as Python prints a dictionary.
[[nodiscard]] std::string text_of(const Metrics& metrics);

/// {prefix}_runtime in seconds, {prefix}_samples_per_second and {prefix}_steps_per_second.
[[nodiscard]] Metrics speed_metrics(const std::string& prefix, double seconds, int64_t samples, int64_t steps);

}  // namespace accelerate::trainer
