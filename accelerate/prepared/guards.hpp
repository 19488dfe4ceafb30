// SPDX-License-Identifier: Apache-2.0
// Regions of the training loop, opened and closed by scope.
#pragma once

#include <memory>
#include <vector>

#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/shared.hpp"

namespace accelerate::prepared {

/// Multiplies every gradient that this Accelerator knows of, once.
void scale_gradients(Registry& registry, double factor);

/// No gradient is left of any model and optimizer, and no window is open.
void drop_gradients(Shared& shared);

using ModelCores = std::vector<std::shared_ptr<ModelCore>>;

/// Backwards of prepared forwards that run while it is open stay on this rank.
class [[nodiscard]] NoSyncGuard {
 public:
  explicit NoSyncGuard(ModelCores models);
  ~NoSyncGuard();
  NoSyncGuard(NoSyncGuard&&) = default;
  NoSyncGuard& operator=(NoSyncGuard&&) = delete;

 private:
  ModelCores models_;
};

/// One micro-batch of an accumulation window; what it decides stays in force after it closes (sync_gradients()).
class [[nodiscard]] AccumulateGuard {
 public:
  /// models   held back within a window; all others are reduced in every micro-batch
  AccumulateGuard(std::shared_ptr<Shared> shared, const ModelCores& models);
  ~AccumulateGuard();
  AccumulateGuard(AccumulateGuard&&) = default;
  AccumulateGuard& operator=(AccumulateGuard&&) = delete;

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace accelerate::prepared
