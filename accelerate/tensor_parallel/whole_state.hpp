// SPDX-License-Identifier: Apache-2.0
// State dicts of models with tensor parallel layers: whole tensors with LibTorch's names.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <string>

namespace torch::nn {
class Module;
}

namespace accelerate::nn {

using StateDict = torch::OrderedDict<std::string, at::Tensor>;

/// Returns copies of all parameters and buffers with dotted names, as a model of whole layers has them: parts are
/// joined. The result loads into the same model on another number of ranks, or without tensor parallelism.
///
/// Collective over the groups of the split layers: all ranks of each group call it. Every rank receives the result.
StateDict whole_state_dict(const torch::nn::Module& module);

/// Sets all parameters and buffers to this rank's parts of whole tensors. Not collective.
///
/// \param state  Result of whole_state_dict(), or the named parameters and buffers of a model of whole layers.
/// \throws Error (usage), without changes, for a missing or unknown name, or another shape, with both shapes.
void load_whole_state_dict(torch::nn::Module& module, const StateDict& state);

}  // namespace accelerate::nn
