// SPDX-License-Identifier: Apache-2.0
// Comparison of evaluations by metric_for_best_model.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/trainer/arguments.hpp"
#include "accelerate/trainer/state.hpp"

namespace accelerate::trainer {

/// \throws Error (usage) with the available names if the metric is missing.
[[nodiscard]] double metric_of(const Metrics& metrics, const std::string& name, std::string_view operation,
                               const RankContext& place);

/// True if the value is better than the best one so far. NaN is never better.
[[nodiscard]] bool is_better(const TrainingArguments& arguments, double value, const std::optional<double>& best);

/// \throws Error (usage) if eval_strategy is `no`.
void require_evaluation(const TrainingArguments& arguments, std::string_view operation, const RankContext& place);

/// Returns the quoted names: `"a", "b" and "c"`; "none" if the list is empty.
[[nodiscard]] std::string quoted_names(const std::vector<std::string>& names);

}  // namespace accelerate::trainer
