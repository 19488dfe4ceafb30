// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "accelerate/trainer/state.hpp"

namespace accelerate::trainer {

/// JSON of what another run needs to go on: where training stands, the history, the best evaluation.
/// stopped   a callback has ended it
[[nodiscard]] std::string saved(const TrainerState& state, bool stopped = false);

/// Puts it into a state; what arguments say (max_steps, logging_steps ...) stays.
/// returns   stopped; of an older text, which does not say it, false
/// Throws Error (data) for a text that is none of saved(); Error (usage) where its steps are of another number of
/// samples than state's: steps and the schedule would be counted in two units.
bool load(TrainerState& state, const std::string& text);

}  // namespace accelerate::trainer
