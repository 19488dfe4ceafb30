// SPDX-License-Identifier: Apache-2.0
// Private: names in the whole model of a pipeline, for other components.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace accelerate::pipeline {

/// Names of the parameters and buffers of all stages, the same on all ranks, and this rank's position in the pipeline.
struct ModelLayout {
  int64_t ranks = 1;  ///< size of the group; 1 if all stages are in this process
  int64_t rank = 0;
  /// True if the pipeline moved its layers to devices. If false, each layer is on the device of its construction.
  bool is_placed = false;
  /// Names of all parameters and buffers, in the order of the whole model.
  std::vector<std::string> names{};
  /// Maps each name of a parameter to the name of its first use. A parameter has several names if layers share it.
  std::unordered_map<std::string, std::string> canonical_names{};
  /// Position of each name in `names`.
  std::unordered_map<std::string, int64_t> positions{};
  /// TensorImpls of parameters that this rank shares with a lower rank. The lower rank counts them in norms.
  std::unordered_set<const void*> tied_copies{};
  /// Parameters of this rank by TensorImpl that other ranks have too.
  std::unordered_set<const void*> tied{};
};

}  // namespace accelerate::pipeline
