// SPDX-License-Identifier: Apache-2.0
// Private: advances a random generator as an operator would, without memory for its result.
#pragma once

#include "accelerate/deferred/value_recipe.hpp"

namespace accelerate::deferred {

/// Records the state of the operator's generator and draws its numbers, so that the next operator draws others.
/// Thread-safe: no other thread draws in between.
/// \param arguments  All arguments of the operator.
/// \returns          False if the operator does not draw from a CPU generator; nothing is changed then.
[[nodiscard]] bool draw(RecordedOperator& recorded, const torch::jit::Stack& arguments);

}  // namespace accelerate::deferred
