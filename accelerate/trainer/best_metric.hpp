// SPDX-License-Identifier: Apache-2.0
// Evaluations compared by the metric that was asked for.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/trainer/arguments.hpp"
#include "accelerate/trainer/state.hpp"

namespace accelerate::trainer {

/// Throws Error (usage) for a metric that is not there, with the names of those that are.
[[nodiscard]] double metric_of(const Metrics& metrics, const std::string& name, std::string_view asked_by,
                               const Place& place);

/// Whether a value is better than the best before it; NaN never is.
[[nodiscard]] bool is_better(const TrainingArguments& arguments, double value, const std::optional<double>& best);

/// Throws Error (usage) where training is not interrupted by evaluations.
void require_evaluation(const TrainingArguments& arguments, std::string_view asked_by, const Place& place);

/// returns   "a" and "b", quoted; "none"
[[nodiscard]] std::string list_of_names(const std::vector<std::string>& names);

}  // namespace accelerate::trainer
