// SPDX-License-Identifier: Apache-2.0
// Progress of a training, and the requests of callbacks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace accelerate::trainer {

/// Numbers by name, as logs and evaluations have them.
using Metrics = std::map<std::string, double>;

/// All members but the last two are equal on every rank.
struct TrainerState {
  /// Epochs so far; 1.5 is the middle of the second. An epoch that a callback ended early counts as complete.
  double epoch = 0;
  /// Optimizer steps so far, and planned in total.
  int64_t global_step = 0;
  int64_t max_steps = 0;
  /// Planned epochs, the last one possibly partial. With TrainingArguments::max_steps, more epochs follow if callbacks
  /// end some early.
  int64_t num_train_epochs = 0;
  /// Samples per optimizer step over all ranks and micro-batches; 0 if unknown.
  int64_t total_train_batch_size = 0;
  /// Steps between logs, and between evaluations.
  int64_t logging_steps = 0;
  int64_t eval_steps = 0;
  /// Logged metrics, each entry with "step" and "epoch".
  std::vector<Metrics> log_history{};
  /// Best evaluation so far by metric_for_best_model, and its step.
  std::optional<double> best_metric{};
  int64_t best_global_step = 0;
  /// Number of batches in the current evaluation or prediction.
  int64_t prediction_steps = 0;
  bool is_local_process_zero = true;
  bool is_world_process_zero = true;
};

/// Requests of callbacks. Training acts on them after each step and each epoch, when all ranks have agreed: a request
/// on any rank applies to all ranks.
struct TrainerControl {
  bool should_training_stop = false;
  /// Ends the current epoch; the next one begins.
  bool should_epoch_stop = false;
  bool should_log = false;
  bool should_evaluate = false;
  bool should_save = false;

  bool operator==(const TrainerControl&) const = default;
};

}  // namespace accelerate::trainer
