// SPDX-License-Identifier: Apache-2.0
// Scope guards for regions of the training loop.
#pragma once

#include <memory>
#include <vector>

#include "accelerate/prepared/accelerator_state.hpp"
#include "accelerate/prepared/model.hpp"

namespace accelerate::prepared {

/// Multiplies every gradient of prepared models and optimizers once.
void scale_gradients(Registry& registry, double factor);

/// Drops all gradients of models and optimizers and closes an open window.
void drop_gradients(AcceleratorState& shared);

using ModelCores = std::vector<std::shared_ptr<ModelCore>>;

/// Gradients of forwards that run during its lifetime are not reduced in backward. Not thread-safe: use it on the
/// thread of its Accelerator.
class [[nodiscard]] NoSyncGuard {
 public:
  explicit NoSyncGuard(ModelCores models);
  ~NoSyncGuard();
  NoSyncGuard(NoSyncGuard&&) = default;
  NoSyncGuard& operator=(NoSyncGuard&&) = delete;

 private:
  ModelCores models_;
};

/// One micro-batch of an accumulation window. Its decision stays in force after it closes (sync_gradients()). Not
/// thread-safe: use it on the thread of its Accelerator.
class [[nodiscard]] AccumulateGuard {
 public:
  /// \param models  Their gradients are not reduced before the end of the window. All other models reduce in every
  /// micro-batch.
  AccumulateGuard(std::shared_ptr<AcceleratorState> shared, const ModelCores& models);
  ~AccumulateGuard();
  AccumulateGuard(AccumulateGuard&&) = default;
  AccumulateGuard& operator=(AccumulateGuard&&) = delete;

 private:
  std::shared_ptr<AcceleratorState> accelerator_state_;
};

}  // namespace accelerate::prepared
