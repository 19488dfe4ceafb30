// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "accelerate/base/error.hpp"

namespace accelerate::sharding {

/// Options of PyTorch's summon_full_params(). Their other values are errors.
struct WholeParametersOptions {
  /// Always false: the parameters are whole on every rank.
  bool rank0_only = false;
  /// Always true: changes in the scope persist.
  bool writeback = true;
};

/// \throws Error (usage) for a value that is not supported, with the remedy.
void check_options(const WholeParametersOptions& options, const RankContext& place);

class FullyShardedParameters;

/// Scope in which every rank has the whole parameters of the given models. Afterwards each rank keeps its part of the
/// values. All ranks open and close it in one order, because the constructor is collective. Not thread-safe: use it on
/// the thread of its Accelerator.
class [[nodiscard]] WholeParameters {
 public:
  explicit WholeParameters(const std::vector<FullyShardedParameters*>& models);
  WholeParameters(const WholeParameters&) = delete;
  WholeParameters& operator=(const WholeParameters&) = delete;
  ~WholeParameters();

 private:
  std::vector<FullyShardedParameters*> models_;
};

}  // namespace accelerate::sharding
