// SPDX-License-Identifier: Apache-2.0
// Where a training stands, and what callbacks ask of it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace accelerate::trainer {

/// Numbers by name, as they are logged and as evaluations give them.
using Metrics = std::map<std::string, double>;

/// The same on every rank, but for the last two.
struct TrainerState {
  /// Passes over the training set so far; 1.5 is the middle of the second. One that was ended early counts as one.
  double epoch = 0;
  /// Optimizer steps so far, and in all.
  int64_t global_step = 0;
  int64_t max_steps = 0;
  /// Passes that are begun, the last one perhaps not to its end; with max_steps more where callbacks end some early.
  int64_t num_train_epochs = 0;
  /// Samples of an optimizer step, over all ranks and micro-batches; 0: not known.
  int64_t total_train_batch_size = 0;
  /// Steps between two logs and two evaluations.
  int64_t logging_steps = 0;
  int64_t eval_steps = 0;
  /// What was logged, each with "step" and "epoch".
  std::vector<Metrics> log_history{};
  /// Of the evaluations so far, by metric_for_best_model.
  std::optional<double> best_metric{};
  int64_t best_global_step = 0;
  /// Batches of the evaluation or prediction at hand.
  int64_t prediction_steps = 0;
  bool is_local_process_zero = true;
  bool is_world_process_zero = true;
};

/// Callbacks set them; the training acts on them after a step and after an epoch, when all ranks have agreed: what one
/// asks for all do.
struct TrainerControl {
  bool should_training_stop = false;
  /// The next epoch begins.
  bool should_epoch_stop = false;
  bool should_log = false;
  bool should_evaluate = false;
  bool should_save = false;

  bool operator==(const TrainerControl&) const = default;
};

}  // namespace accelerate::trainer
