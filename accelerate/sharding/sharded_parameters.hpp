// SPDX-License-Identifier: Apache-2.0
// Parameters that every rank has, and of which each rank steps on its own part.
#pragma once

#include <vector>

#include "accelerate/sharding/parameter_sharding.hpp"
#include "accelerate/sharding/whole_unit.hpp"

namespace accelerate::sharding {

/// shard_optim_op (ZeRO-1): every rank keeps whole parameters, in one flat tensor for each unit. After a step each rank
/// has new values in its own part only; after_step() starts the exchange of the parts, and operators wait for it.
class ShardedParameters final : public ParameterSharding {
 public:
  /// Collective.
  /// \param group       For exclusive use by this object: pass Group::duplicate().
  /// \param parameters  Whole parameters in the order of the model, each once.
  /// \param unit_bytes  Maximum size of a collective, at least 1.
  /// \param waits_later If false, after_step() waits for the exchange.
  /// \param alone       Parameters that are a unit each, so that their division depends on no other parameter.
  /// \throws Error (usage) on every rank, if a parameter is neither float32 nor float64, has gaps or overlaps in
  ///         memory, shares memory with another one, or had another range in this process before.
  ShardedParameters(const comm::Group& group, const std::vector<state::ParameterShard>& parameters, int64_t unit_bytes,
                    bool waits_later = true, const Keys& alone = {});

  /// Waits for the exchange after the last step. The parts share memory with the parameters. A gradient with other
  /// strides than its parameter is copied.
  [[nodiscard]] std::vector<state::ParameterShard> shards(const Keys& keys) override;
  /// Starts to send this rank's part of each unit in which a listed parameter has a gradient. Which parameters have
  /// gradients must be the same on all ranks, as it is after a reduction. The other parameters of the unit get the
  /// values of their owners, too. Memory until a unit is used: a copy of this rank's part.
  void after_step(const Keys& keys) override;
  void restore() override;

 private:
  [[nodiscard]] bool is_stepped(const state::ParameterShard& parameter, const Keys& keys) const;

  bool waits_later_;
  std::vector<WholeUnit*> unit_of_;  // by parameter
};

}  // namespace accelerate::sharding
