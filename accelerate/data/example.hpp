// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/data/example.h>

#include <tuple>

namespace torch::data {
/// Makes the samples and batches of torch::data trees for accelerate::tree.
template <typename Data, typename Target>
auto tree_members(Example<Data, Target>& example) {
  return std::tie(example.data, example.target);
}
template <typename Data>
auto tree_members(Example<Data, example::NoTarget>& example) {
  return std::tie(example.data);
}
}  // namespace torch::data
