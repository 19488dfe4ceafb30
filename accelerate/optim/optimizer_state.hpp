// SPDX-License-Identifier: Apache-2.0
// Saves and loads optimizer state with PyTorch's names.
#pragma once

#include <functional>
#include <string>

#include "accelerate/base/error.hpp"
#include "accelerate/optim/state_ranges.hpp"
#include "accelerate/state/optimizer_state.hpp"

namespace torch::optim {
class Optimizer;
}

namespace accelerate::optim {

/// Complete state of torch::optim::SGD, Adam, AdamW, Adagrad and RMSprop, with PyTorch's additional options at their
/// defaults; tensors are not copied. Any other optimizer is saved with its own save().
///
/// \throws Error (usage) for an optimizer with state that does not override save(), because its state would be lost.
[[nodiscard]] state::OptimizerState optimizer_state(torch::optim::Optimizer& optimizer, const RankContext& place);

/// Returns the dtype of a parameter's state.
using StateDtype = std::function<c10::ScalarType(const at::Tensor& parameter)>;

/// Sets options and state to the saved ones; tensors are copied to their parameters' devices. Everything is validated
/// before anything is changed.
///
/// \param range_of_parameter  If set, only the ranges of the saved tensors that it returns are kept and read.
/// \param read  Reads saved tensors that are placeholders.
/// \throws Error (data) for another number of groups or parameters, shapes that differ from their parameters', a state
///         that this optimizer type does not have, and unknown options that are not at their default (maximize).
void load_state(torch::optim::Optimizer& optimizer, const state::OptimizerState& state, const StateDtype& dtype,
                const RankContext& place, const RangeOfParameter& range_of_parameter = {},
                const state::ReadElements& read = {});

/// Returns the value of an option as Python prints it: "None", "True", "0.1" or "(0.9, 0.999)".
[[nodiscard]] std::string text_of(const state::OptionValue& value);

/// \throws as load_state() does, without changing anything.
void check_optimizer_state(torch::optim::Optimizer& optimizer, const state::OptimizerState& state,
                           const RankContext& place);

}  // namespace accelerate::optim
