// SPDX-License-Identifier: Apache-2.0
// Assigns processors to ranks.
#pragma once

#include <cstdint>
#include <vector>

namespace accelerate::launch {

/// Assigns neighbouring processors to each rank. If the ranks divide evenly among the NUMA nodes, each rank stays on
/// one node. If there are more ranks than processors, ranks share processors.
///
/// \param nodes  Processors of each NUMA node.
/// \returns one list per rank; the lists are empty if there are no processors.
std::vector<std::vector<int>> assign_processors(const std::vector<std::vector<int>>& nodes, int64_t ranks);

}  // namespace accelerate::launch
