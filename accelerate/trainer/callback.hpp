// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <string>

#include "accelerate/trainer/arguments.hpp"
#include "accelerate/trainer/state.hpp"

namespace accelerate::trainer {

class TrainerBase;

/// What a callback may look at.
struct TrainerContext {
  const TrainingArguments& arguments;
  const TrainerState& state;
  /// Its parameters and buffers by name, its accelerator.
  TrainerBase& trainer;
  /// What is logged (on_log) or was measured (on_evaluate, on_predict); empty elsewhere.
  const Metrics& metrics;
  /// on_evaluate: of eval_dataset, by the name "eval", within train(): the evaluations that metric_for_best_model
  /// compares. All others are the program's own.
  bool for_best = false;
};

/// Looks on at a training, on every rank, and may ask for things by the control object. Events come in this order:
///
///   on_train_begin
///     on_epoch_begin
///       on_step_begin
///       on_substep_end             after each micro-batch but a window's last
///       on_pre_optimizer_step      gradients are clipped
///       on_optimizer_step
///       on_step_end, then on_log, on_evaluate, on_save where they are due
///     on_epoch_end, then on_log, on_evaluate, on_save where they are due; on_save of the epoch's last step, too
///   on_train_end                   after the last on_log, with the totals
///
/// on_prediction_step follows each batch of evaluate() and predict(). An exception ends the training.
class TrainerCallback {
 public:
  TrainerCallback() = default;
  TrainerCallback(const TrainerCallback&) = delete;
  TrainerCallback& operator=(const TrainerCallback&) = delete;
  virtual ~TrainerCallback() = default;

  virtual void on_train_begin(const TrainerContext& /*now*/, TrainerControl& /*control*/) {}
  virtual void on_epoch_begin(const TrainerContext& /*now*/, TrainerControl& /*control*/) {}
  virtual void on_step_begin(const TrainerContext& /*now*/, TrainerControl& /*control*/) {}
  virtual void on_substep_end(const TrainerContext& /*now*/, TrainerControl& /*control*/) {}
  virtual void on_pre_optimizer_step(const TrainerContext& /*now*/, TrainerControl& /*control*/) {}
  virtual void on_optimizer_step(const TrainerContext& /*now*/, TrainerControl& /*control*/) {}
  virtual void on_step_end(const TrainerContext& /*now*/, TrainerControl& /*control*/) {}
  virtual void on_log(const TrainerContext& /*now*/, TrainerControl& /*control*/) {}
  virtual void on_prediction_step(const TrainerContext& /*now*/, TrainerControl& /*control*/) {}
  virtual void on_evaluate(const TrainerContext& /*now*/, TrainerControl& /*control*/) {}
  virtual void on_save(const TrainerContext& /*now*/, TrainerControl& /*control*/) {}
  virtual void on_predict(const TrainerContext& /*now*/, TrainerControl& /*control*/) {}
  virtual void on_epoch_end(const TrainerContext& /*now*/, TrainerControl& /*control*/) {}
  virtual void on_train_end(const TrainerContext& /*now*/, TrainerControl& /*control*/) {}

  /// It asks for the same on every rank. Otherwise the ranks compare what they ask for after every step, which is one
  /// small all-reduce.
  [[nodiscard]] virtual bool decides_alike() const { return false; }

  using StateDict = torch::OrderedDict<std::string, at::Tensor>;
  /// What it remembers of a training, saved with every checkpoint: rank 0's, for all ranks. Empty: nothing.
  [[nodiscard]] virtual StateDict state_dict() const { return StateDict(); }
  /// What it gave, on the CPU; after the on_train_begin of a training that is resumed. Not called where the checkpoint
  /// has none of a callback of this type.
  virtual void load_state_dict(const StateDict& /*saved*/) {}
};

/// Its events; for whoever calls one of them.
using Event = void (TrainerCallback::*)(const TrainerContext&, TrainerControl&);

}  // namespace accelerate::trainer
