// SPDX-License-Identifier: Apache-2.0
// What optimizers remember, by PyTorch's names.
#pragma once

#include <functional>

#include "accelerate/base/error.hpp"
#include "accelerate/state/optimizer_state.hpp"

namespace torch::optim {
class Optimizer;
}

namespace accelerate::optim {

/// For torch::optim::SGD, Adam, AdamW, Adagrad and RMSprop the whole state, with PyTorch's additional options at their
/// defaults; tensors are not copied. Any other optimizer writes itself with its save().
///
/// \throws Error (usage) for an optimizer with state that does not override save(), because its state would be lost.
[[nodiscard]] state::OptimizerState state_of(torch::optim::Optimizer& optimizer, const Place& place);

/// The dtype that a parameter's state is kept in.
using StateDtype = std::function<c10::ScalarType(const at::Tensor& parameter)>;

/// Sets options and state to the saved ones; tensors are copied to their parameters' devices. Everything is validated
/// before anything is changed.
///
/// \throws Error (data) for another number of groups or parameters, shapes that differ from their parameters', a state
///         that this optimizer type does not have, and unknown options that are not at their default (maximize).
void load_state(torch::optim::Optimizer& optimizer, const state::OptimizerState& state, const StateDtype& dtype,
                const Place& place);

/// \throws as load_state() does, without changing anything.
void check_state(torch::optim::Optimizer& optimizer, const state::OptimizerState& state, const Place& place);

}  // namespace accelerate::optim
