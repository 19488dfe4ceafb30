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

/// Of torch::optim::SGD, Adam, AdamW, Adagrad and RMSprop everything, with the options that PyTorch's own have beside
/// (at their defaults); tensors are not copied. Any other optimizer writes itself, by its save().
///
/// Throws Error (usage) for one that has a state and does not override save(): it would be lost.
[[nodiscard]] state::OptimizerState state_of(torch::optim::Optimizer& optimizer, const Place& place);

/// The dtype that a parameter's state is kept in.
using StateDtype = std::function<c10::ScalarType(const at::Tensor& parameter)>;

/// Options and state become the saved ones; tensors are copied to their parameters' devices. Everything is looked at
/// before anything is changed.
///
/// Throws Error (data) for other numbers of groups or parameters, shapes that are not their parameters', a state that
/// this type of optimizer does not keep, and options that it does not know and that are not at their default
/// (maximize).
void load_state(torch::optim::Optimizer& optimizer, const state::OptimizerState& state, const StateDtype& dtype,
                const Place& place);

/// Throws as load_state() does, and changes nothing.
void check_state(torch::optim::Optimizer& optimizer, const state::OptimizerState& state, const Place& place);

}  // namespace accelerate::optim
