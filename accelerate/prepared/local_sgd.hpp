// SPDX-License-Identifier: Apache-2.0
// Local SGD: ranks step on their own gradients and average their parameters at intervals.
#pragma once

#include <memory>

#include "accelerate/prepared/accelerator_state.hpp"
#include "accelerate/prepared/model.hpp"

namespace accelerate::prepared {

/// Keeps the gradients of a model local during its lifetime. Every `steps`-th call of step() at the end of an
/// accumulation window averages the parameters over the ranks, and so does the end of the scope (Lin et al., Don't Use
/// Large Mini-Batches, Use Local SGD, 2018). With fp16, a step is skipped on all ranks or on none, so every rank must
/// call optimizer.step(), even without gradients. With a single rank it does nothing. Not thread-safe: use it on the
/// thread of its Accelerator.
class [[nodiscard]] LocalSgd {
 public:
  /// \throws Error (usage) if `steps` is less than 1.
  LocalSgd(std::shared_ptr<AcceleratorState> shared, std::shared_ptr<ModelCore> model, int64_t steps);
  /// Calls finish() if it did not run; an error is only logged. If an exception ends the scope, gradients are reduced
  /// again, but the parameters are not averaged, because the other ranks may not take part.
  ~LocalSgd();
  LocalSgd(const LocalSgd&) = delete;
  LocalSgd& operator=(const LocalSgd&) = delete;

  /// Must be called after every optimizer.step(). Within an accumulation window it does nothing.
  void step();
  /// Averages the parameters once more and enables the reduction of gradients again. Collective.
  void finish();

 private:
  void close();
  void average();

  std::shared_ptr<AcceleratorState> accelerator_state_;
  std::shared_ptr<ModelCore> model_;
  int64_t steps_, made_ = 0;
  int exceptions_;
  bool open_ = false;
};

}  // namespace accelerate::prepared
