// SPDX-License-Identifier: Apache-2.0
// Detects optimizer steps that bypass the prepared optimizer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "accelerate/gradient/write_stamp.hpp"

namespace accelerate::prepared {

class OptimizerCore;
struct AcceleratorState;

/// Detects writes to parameters while only a prepared optimizer may step on their gradients: gradients that carry the
/// loss scale of fp16, and, with a single rank, gradients of an accumulation window that has not ended. A stock
/// optimizer that steps on such gradients changes the parameters by a wrong amount. With several ranks, the gradient
/// reducers detect the same within a window.
///
/// backward() records the version counter and the first bytes of each parameter that has such a gradient. The next
/// backward(), or zero_grad() of the prepared optimizer, compares them and throws.
///
/// A step of a prepared optimizer compares the parameters of all prepared optimizers, and releases its own. A loss also
/// adds gradients to networks that are not stepped on (the critic of a GAN), and the program may write to their
/// parameters (clamp them). From then on, a write to parameters of another prepared optimizer is an error only if the
/// tensors in the state of that optimizer changed, too: momentum, or the averages of Adam, AdamW, RMSprop and Adagrad.
/// SGD without momentum and optimizers of other types have no such state. Their steps behind the prepared optimizer,
/// after the step of another one, look like a clamp and are not detected.
///
/// \note A steady step allocates nothing, and the host does not wait for the device. LibTorch's SGD bypasses the
///   version counter. On an accelerator the host therefore also reads the first bytes until a prepared optimizer steps
///   for the first time, in at most 16 backwards.
class StepWatch {
 public:
  /// \throws Error (usage) if a parameter changed since the last backward, while its gradient was watched.
  void begin_backward(AcceleratorState& shared);
  /// Records the parameters. Must be called after the library's own writes of this backward.
  void backward_done(AcceleratorState& shared);
  /// \throws Error (usage) as begin_backward(), for the parameters of this optimizer.
  void begin_zero_grad(AcceleratorState& shared, const OptimizerCore& optimizer);
  /// A prepared forward begins. Writes of the forward itself, such as those of an embedding with max_norm, are no
  /// steps.
  void begin_forward();
  /// The prepared forward ended. Records the parameters again unless they had changed before it.
  void forward_done();
  /// \throws Error (usage) as begin_backward(), before any prepared optimizer steps.
  void begin_step(AcceleratorState& shared);
  /// A prepared optimizer stepped.
  void record_step(const OptimizerCore& stepped);
  /// The gradients of this optimizer no longer carry a scale, or are gone.
  void release(const OptimizerCore& optimizer);
  /// The library itself wrote to parameters, or dropped all gradients.
  void release_all();
  /// Also drops the references to the parameters.
  void clear();

 private:
  struct Watched {
    at::Tensor parameter;
    gradient::WriteWatch writes{};
    // Gradient before the backward, to detect whether the backward reaches the parameter.
    const void* gradient = nullptr;
    int64_t gradient_version = 0;
  };
  // The parameters of one prepared optimizer, or those of models that belong to none.
  struct Owner {
    const OptimizerCore* optimizer = nullptr;
    bool armed = false;
    // Another prepared optimizer stepped since the backward, so a write counts only if this one stepped, too.
    bool needs_own_step = false;
    std::vector<Watched> parameters{};
    const Watched* witness = nullptr;  // the first armed parameter
    uint64_t state_stamp = 0;          // of the optimizer's state of that parameter, at the backward
  };

  void find_parameters(AcceleratorState& shared);
  void arm(Owner& owner, const AcceleratorState& shared, bool reached_only);
  void require_unchanged(Owner& owner, AcceleratorState& shared, std::string_view operation);
  [[noreturn]] void refuse(const Watched& changed, AcceleratorState& shared, std::string_view operation);
  [[nodiscard]] static uint64_t state_stamp(const Owner& owner);

  std::vector<Owner> owners_;  // the last one: parameters that belong to no prepared optimizer
  int64_t seen_registry_ = -1, seen_parameters_ = -1;
  int64_t micro_batches_ = 0;  // of the open window, at the last backward
  int64_t reads_ = 0;
  int64_t forwards_ = 0;  // that run now, nested
  bool has_stepped_ = false;
};

}  // namespace accelerate::prepared
