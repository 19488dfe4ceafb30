// SPDX-License-Identifier: Apache-2.0
// Local SGD: ranks step on their own gradients and average their parameters now and then.
#pragma once

#include <memory>

#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/shared.hpp"

namespace accelerate::prepared {

/// While it lives the model's gradients stay on their rank; every `steps`-th step() after an optimizer step averages
/// the parameters over the ranks, and so does the end (Lin et al., Don't Use Large Mini-Batches, Use Local SGD, 2018).
/// With fp16 a step is skipped on all ranks or on none: every rank calls optimizer.step() then, gradients or not.
/// On one rank it does nothing.
class [[nodiscard]] LocalSgd {
 public:
  /// Throws Error (usage) for steps below 1.
  LocalSgd(std::shared_ptr<Shared> shared, std::shared_ptr<ModelCore> model, int64_t steps);
  /// finish(), unless it ran; an error is then only logged. Left by an exception: gradients are reduced again, but the
  /// parameters stay as they are on each rank, because the other ranks may not come to an average.
  ~LocalSgd();
  LocalSgd(const LocalSgd&) = delete;
  LocalSgd& operator=(const LocalSgd&) = delete;

  /// After every optimizer.step(); within an accumulation window it does nothing.
  void step();
  /// Averages once more and lets gradients be reduced again. Collective.
  void finish();

 private:
  void close();
  void average();

  std::shared_ptr<Shared> shared_;
  std::shared_ptr<ModelCore> model_;
  int64_t steps_, made_ = 0;
  int exceptions_;
  bool open_ = false;
};

}  // namespace accelerate::prepared
