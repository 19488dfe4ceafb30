// SPDX-License-Identifier: Apache-2.0
// Which processors each rank keeps to.
#pragma once

#include <cstdint>
#include <vector>

namespace accelerate::launch {

/// Neighbouring processors for each of so many ranks. Where the ranks divide evenly among the NUMA nodes each stays
/// within one; where there are more ranks than processors some share one.
///
/// nodes     processors of each NUMA node
/// returns   a list per rank; empty lists where there are no processors
std::vector<std::vector<int>> share_processors(const std::vector<std::vector<int>>& nodes, int64_t ranks);

}  // namespace accelerate::launch
