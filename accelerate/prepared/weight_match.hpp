// SPDX-License-Identifier: Apache-2.0
// Private: a model's tensors and saved ones, brought together by their names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/prepared/checkpointing.hpp"

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

/// A name that was not saved is met where its tensor is the memory of one that was: of tied tensors Python saves one.
/// A missing `num_batches_tracked` beside saved `running_mean` and `running_var` is not reported, as in PyTorch; the
/// model keeps its count.
[[nodiscard]] WeightMatch match_weights(const ModelCore& model, const checkpoint::NamedTensors& saved);

/// Copies what was saved into what is here: into the master of what has one, whose rounding is the parameter then.
void load_pairs(const std::vector<WeightMatch::Pair>& pairs, MasterWeights& masters);

/// Throws Error (data) with all names where shapes differ, or, strict, where names did not meet.
/// which   "model_1"
void check_match(const WeightMatch& match, bool strict, const Place& place, std::string_view operation,
                 std::string_view which);

}  // namespace accelerate::prepared
