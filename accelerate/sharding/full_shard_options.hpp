// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "accelerate/units/unit_plan.hpp"

namespace accelerate::sharding {

struct FullShardOptions {
  /// If false, every rank keeps whole parameters, and only gradients and optimizer state are divided (shard_grad_op).
  bool shard_parameters = true;
  /// If false, parameters stay whole from the forward to the end of the backward.
  bool reshard_after_forward = true;
  /// Starts the gather of the next unit before an operator of the forward uses it, as the previous pass showed.
  bool prefetch = true;
  /// If true, this rank's parts of parameters and gradients, and its optimizer state, are in the memory of the host.
  /// Requires shard_parameters.
  bool cpu_offload = false;
  /// If true, each machine has a replica of the model, which its ranks divide among them.
  bool is_hybrid = false;
  /// As prefetch, for the gathers of the backward.
  bool prefetch_in_backward = true;
  /// With is_hybrid: number of consecutive ranks that divide a replica. If 0, the ranks of a machine.
  int64_t dp_shard_size = 0;
  accelerate::units::UnitOptions units{};
};

}  // namespace accelerate::sharding
