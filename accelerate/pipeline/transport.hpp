// SPDX-License-Identifier: Apache-2.0
// Moves activations and gradients between stages. Private.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>

#include "accelerate/pipeline/schedule.hpp"

namespace accelerate::pipeline {

/// Decisions of the first stage about one step, and additions of the ranks up to the last stage.
struct StepHeader {
  static constexpr int64_t kNoStage = std::numeric_limits<int64_t>::max();

  bool training = true;
  int64_t micro_batches = 0;
  int64_t rows = 0;  ///< rows of the whole batch
  /// First stage with a parameter that needs a gradient, -1 if the input needs one. Stages up to it get no gradient.
  int64_t first_trainable = kNoStage;
  int64_t key = 0;          ///< number of these sizes of the input; steps with the same key have the same shapes
  bool is_new_key = false;  ///< the shapes are exchanged in this step
};

class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  /// Agrees on the step with the other ranks. On the rank of the first stage `own` is complete; on other ranks only
  /// `training` and this rank's `first_trainable` are read.
  /// \param input  Input of the step on the rank of the first stage.
  virtual StepHeader begin(StepHeader own, const at::Tensor& input) = 0;
  /// True if the gradient of this stage's input is sent to the previous stage.
  [[nodiscard]] virtual bool sends_gradient(int64_t stage, at::ScalarType dtype) const = 0;
  /// Starts to send the result of the action's stage. Does not wait.
  virtual void send(const Action& action, const at::Tensor& tensor) = 0;
  /// Starts to receive for a receive action.
  virtual void start_receive(const Action& action) = 0;
  /// Waits for the tensor of the receive action of this kind. Undefined if the action transfers nothing.
  virtual at::Tensor take(ActionKind kind, int64_t stage, int64_t micro_batch) = 0;
  /// Waits for all sends of the step.
  virtual void finish() = 0;
};

}  // namespace accelerate::pipeline
