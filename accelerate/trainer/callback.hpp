// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <string>

#include "accelerate/trainer/arguments.hpp"
#include "accelerate/trainer/state.hpp"

namespace accelerate::trainer {

class TrainerBase;

/// State of the training that each event receives.
struct TrainerContext {
  const TrainingArguments& arguments;
  const TrainerState& state;
  /// Gives access to the model's parameters and buffers by name, and to the Accelerator.
  TrainerBase& trainer;
  /// Logged metrics (on_log) or measured ones (on_evaluate, on_predict); empty in other events.
  const Metrics& metrics;
  /// True in on_evaluate for eval_dataset with the prefix "eval" within train(). Only these evaluations are compared by
  /// metric_for_best_model.
  bool for_best = false;
};

/// Receives the events of a training on every rank and can make requests through the control object. Order of events:
///
///   on_train_begin
///     on_epoch_begin
///       on_step_begin
///       on_substep_end             after each micro-batch except the last of a window
///       on_pre_optimizer_step      after gradient clipping
///       on_optimizer_step
///       on_step_end, then on_log, on_evaluate, on_save if due
///     on_epoch_end, then on_log, on_evaluate, on_save if due; also on_save of the epoch's last step
///   on_train_end                   after the last on_log, which has the totals
///
/// on_prediction_step follows each batch of evaluate() and predict(). An exception ends the training. All functions are
/// called on the thread that trains.
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

  /// True if the callback makes the same requests on every rank. Otherwise the ranks combine their requests after every
  /// step with a small all-reduce.
  [[nodiscard]] virtual bool decides_same_on_all_ranks() const { return false; }

  using StateDict = torch::OrderedDict<std::string, at::Tensor>;
  /// Returns the state to save with every checkpoint. Rank 0's state is used for all ranks. If empty, no state is
  /// saved.
  [[nodiscard]] virtual StateDict state_dict() const { return StateDict(); }
  /// Restores the result of state_dict(), on the CPU, after on_train_begin of a resumed training. Not called if the
  /// checkpoint has no state of a callback of this type.
  virtual void load_state_dict(const StateDict& /*saved*/) {}
};

/// Pointer to one of the event functions.
using Event = void (TrainerCallback::*)(const TrainerContext&, TrainerControl&);

}  // namespace accelerate::trainer
