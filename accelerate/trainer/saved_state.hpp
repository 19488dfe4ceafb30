// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "accelerate/trainer/state.hpp"

namespace accelerate::trainer {

/// Returns the state that a resumed run needs as JSON: progress, history and best evaluation.
/// \param stopped  True if a callback has ended the training.
[[nodiscard]] std::string saved(const TrainerState& state, bool stopped = false);

/// Restores a state from JSON. Members that follow from the arguments (max_steps, logging_steps, ...) are unchanged.
/// \returns `stopped`; false for texts of older versions, which lack it.
/// \throws Error (data) if saved() did not write the text; Error (usage) if a step of the saved training takes another
///         number of samples, because steps and schedule count in them.
bool load_trainer_state(TrainerState& state, const std::string& text);

}  // namespace accelerate::trainer
