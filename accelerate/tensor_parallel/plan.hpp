// SPDX-License-Identifier: Apache-2.0
// Splits the layers of an existing model over a tensor parallel group by a plan of names.
#pragma once

#include <torch/nn/pimpl.h>

#include <string>
#include <utility>
#include <vector>

#include "accelerate/comm/group.hpp"

namespace torch::nn {
class Module;
}

namespace accelerate::nn {

/// How one layer is split, with the names of PyTorch's tensor parallel styles.
enum class ParallelStyle {
  colwise,  ///< Linear or Conv2d by output features, the first of a pair; a whole MultiheadAttention by heads
  rowwise,  ///< Linear or Conv2d by input features: the second of a pair
  vocab,    ///< Embedding by vocabulary
};

/// Names of layers, and how they are split. A name is dotted, as in named_modules(); "*" stands for one part of it:
/// {{"blocks.*.0", ParallelStyle::colwise}, {"blocks.*.2", ParallelStyle::rowwise}}.
using ParallelPlan = std::vector<std::pair<std::string, ParallelStyle>>;

/// Replaces layers of LibTorch in a Sequential, ModuleList or ModuleDict by their tensor parallel counterparts with
/// this rank's part of the parameters. Collective: all ranks of the group call it with equal models and plans.
/// Optimizers must be created afterwards, because the parameters are new tensors.
///
/// A layer that is a member of a user-defined class cannot be replaced, because the class would still call the old
/// layer. Declare it as ColumnParallelLinear, RowParallelLinear and so on. Neither can a class derived from a layer of
/// LibTorch, except accelerate::nn::Linear, because its forward() and parameters would be lost. A layer object in
/// several places of the model is replaced by one layer. A parameter that is also registered elsewhere, such as a tied
/// weight, cannot be split.
///
/// \note Code that casts an entry of a ModuleList or ModuleDict to a layer of LibTorch finds the parallel layer
///   afterwards. A MultiheadAttention becomes a ParallelMultiheadAttention. Its forward() has the arguments of the
///   Python layer and returns the output without attention weights.
///
/// \returns the names of the replaced layers, in the order of the model.
/// \throws Error (usage), without changes, if a name of the plan matches no layer, if a layer cannot be replaced or
///   does not fit its style, if two names match one layer, if a parameter of a layer is also registered elsewhere, if
///   sizes are not divisible, or if the plans of the ranks differ.
std::vector<std::string> tensor_parallel(torch::nn::Module& module, const ParallelPlan& plan, const comm::Group& group);

/// Overload for a module holder.
template <typename Contained>
std::vector<std::string> tensor_parallel(const torch::nn::ModuleHolder<Contained>& holder, const ParallelPlan& plan,
                                         const comm::Group& group) {
  return tensor_parallel(*holder.ptr(), plan, group);
}

}  // namespace accelerate::nn
