// SPDX-License-Identifier: Apache-2.0
// Private: matches the tensors of a model with saved tensors by name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/prepared/checkpoint_io.hpp"
#include "accelerate/state/saved_elements.hpp"

namespace accelerate::prepared {

struct WeightMatch {
  struct Pair {
    std::string name;
    at::Tensor here, saved;
  };
  std::vector<Pair> pairs{};  ///< in the model's order
  LoadedModel unmet{};
  std::vector<std::string> misshapen{};  ///< with both shapes
};

/// A name that was not saved matches if its tensor shares memory with a saved one, because Python saves tied tensors
/// once. A missing `num_batches_tracked` beside saved `running_mean` and `running_var` is not reported, as in PyTorch;
/// the model keeps its count.
[[nodiscard]] WeightMatch match_weights(const ModelCore& model, const checkpoint::NamedTensors& saved);

/// Copies the saved tensors into the model. If a parameter has a master, the saved value is copied to the master and
/// rounded into the parameter. Only this rank's part of a sharded parameter is read and changed: call parts_replaced()
/// of fully_sharded_models() afterwards.
/// \param read  Reads saved tensors that are placeholders.
void load_pairs(const std::vector<WeightMatch::Pair>& pairs, AcceleratorState& shared, const state::ReadElements& read);

/// \param which  Name of the model in the error, such as "model_1".
/// \throws Error (data) with all names if shapes differ, or, with `strict`, if names do not match.
void check_match(const WeightMatch& match, bool strict, const RankContext& place, std::string_view operation,
                 std::string_view which);

}  // namespace accelerate::prepared
