// SPDX-License-Identifier: Apache-2.0
// Parameters that every rank has, and of which each rank steps on its own part.
#pragma once

#include <vector>

#include "accelerate/sharding/parameter_sharding.hpp"

namespace accelerate::sharding {

/// shard_optim_op (ZeRO-1): the parameters keep their memory on every rank. After a step each rank has new values in
/// its own part only; after_step() exchanges them.
class ShardedParameters final : public ParameterSharding {
 public:
  /// Collective.
  /// \param group       For exclusive use by this object: pass Group::duplicate().
  /// \param parameters  Whole parameters in the order of the model, each once.
  /// \param unit_bytes  Maximum size of a collective, at least 1.
  /// \throws Error (usage) on every rank, if a parameter is neither float32 nor float64, has gaps or overlaps in
  /// memory,
  ///         or had another range in this process before.
  ShardedParameters(const comm::Group& group, std::vector<state::ParameterShard> parameters, int64_t unit_bytes);

  /// The parts share memory with the parameters. A gradient with other strides than its parameter is copied.
  [[nodiscard]] std::vector<state::ParameterShard> shards(const Keys& keys) override;
  /// Sends this rank's part of each listed parameter that has a gradient to all ranks. Which parameters have gradients
  /// must be the same on all ranks, as it is after a reduction. Memory: four units of padding and parts at most.
  void after_step(const Keys& keys) override;

 private:
  struct UnitTransfer;
  [[nodiscard]] bool takes_part(const ShardUnit& unit, const Keys& keys) const;
  [[nodiscard]] UnitTransfer start(const ShardUnit& unit) const;
  void finish(UnitTransfer& transfer, const Keys& keys) const;
};

}  // namespace accelerate::sharding
