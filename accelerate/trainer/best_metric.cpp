// SPDX-License-Identifier: Apache-2.0
#include "accelerate/trainer/best_metric.hpp"

#include <cmath>

namespace accelerate::trainer {

std::string quoted_names(const std::vector<std::string>& names) {
  std::string list;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) list += i + 1 == names.size() ? " and " : ", ";
    list += '"' + names[i] + '"';
  }
  return list.empty() ? "none" : list;
}

double metric_of(const Metrics& metrics, const std::string& name, std::string_view operation,
                 const RankContext& place) {
  const auto found = metrics.find(name);
  if (found != metrics.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [other, value] : metrics) names.push_back(other);
  base::fail(ErrorKind::usage, place, operation,
             "there is no metric \"{}\", the evaluation returned {}; name one of them as metric_for_best_model", name,
             quoted_names(names));
}

bool is_better(const TrainingArguments& arguments, double value, const std::optional<double>& best) {
  if (std::isnan(value)) return false;
  if (!best) return true;
  return greater_is_better(arguments) ? value > *best : value < *best;
}

void require_evaluation(const TrainingArguments& arguments, std::string_view operation, const RankContext& place) {
  if (arguments.eval_strategy != IntervalStrategy::no) return;
  base::fail(
      ErrorKind::usage, place, operation,
      "eval_strategy is no; only evaluations during training determine which model is best: give eval_strategy steps "
      "or epoch");
}

}  // namespace accelerate::trainer
