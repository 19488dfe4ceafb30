// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace accelerate::sharding {

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
