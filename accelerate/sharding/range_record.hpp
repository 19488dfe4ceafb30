// SPDX-License-Identifier: Apache-2.0
// Private: remembers which range of each parameter this rank owns.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "accelerate/state/parameter_shard.hpp"

namespace accelerate::sharding {

/// Records the ranges of parameters that are prepared. Optimizer state exists only for the recorded range and contains
/// no information about its position, so another division of the same parameters would silently mix elements. The
/// record is one per process, because an optimizer may outlive the Accelerator that divided its state. Thread-safe.
///
/// \param shards  The parameters with the range of this rank; `value` is the whole parameter.
void record_ranges(std::span<const state::ParameterShard> shards);

/// Returns the problem if a parameter that still exists was recorded with another range, "" otherwise.
[[nodiscard]] std::string changed_range(std::span<const state::ParameterShard> shards, int64_t rank);

}  // namespace accelerate::sharding
