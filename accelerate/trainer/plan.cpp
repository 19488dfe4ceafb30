// SPDX-License-Identifier: Apache-2.0
#include "accelerate/trainer/plan.hpp"

#include <algorithm>
#include <cmath>

namespace accelerate::trainer {
namespace {

/// Adds separators of thousands: 14,200.
std::string grouped(int64_t number) {
  std::string digits = std::to_string(number);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

/// Formats a number as Python prints it, rounded for display.
std::string number_text(double value) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  const std::string text = fmt::format("{:.4g}", value);
  if (std::abs(value) >= 10000) return fmt::format("{:.1f}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

double rounded(double value, int decimals) {
  const double scale = std::pow(10.0, decimals);
  return std::round(value * scale) / scale;
}

}  // namespace

TrainingPlan plan_training(const TrainingArguments& arguments, const TrainingSize& size, const RankContext& place) {
  if (size.batches < 1) {
    base::fail(ErrorKind::usage, place, "train",
               "the training set has {} examples, which make no batch of {} on every rank; give more, or a smaller "
               "per_device_train_batch_size{}",
               size.examples, arguments.per_device_train_batch_size,
               arguments.dataloader_drop_last ? ", or dataloader_drop_last = false" : "");
  }
  TrainingPlan plan{.size = size, .per_device_batch_size = arguments.per_device_train_batch_size};
  const int64_t window = size.gradient_accumulation_steps;
  plan.steps_per_epoch = (size.batches + window - 1) / window;
  if (arguments.max_steps > 0) {
    plan.max_steps = arguments.max_steps;
    plan.num_train_epochs = (plan.max_steps + plan.steps_per_epoch - 1) / plan.steps_per_epoch;
  } else {
    plan.max_steps =
        static_cast<int64_t>(std::ceil(arguments.num_train_epochs * static_cast<double>(plan.steps_per_epoch)));
    plan.num_train_epochs = static_cast<int64_t>(std::ceil(arguments.num_train_epochs));
  }
  plan.warmup_steps =
      arguments.warmup_steps > 0
          ? arguments.warmup_steps
          : static_cast<int64_t>(std::ceil(static_cast<double>(plan.max_steps) * arguments.warmup_ratio));
  return plan;
}

std::string summary(const TrainingPlan& plan) {
  return fmt::format(
      "***** Running training *****\n"
      "  Num examples = {}\n"
      "  Num Epochs = {}\n"
      "  Instantaneous batch size per device = {}\n"
      "  Total train batch size (w. parallel, distributed & accumulation) = {}\n"
      "  Gradient Accumulation steps = {}\n"
      "  Total optimization steps = {}\n"
      "  Number of trainable parameters = {}\n",
      grouped(plan.size.examples), grouped(plan.num_train_epochs), grouped(plan.per_device_batch_size),
      grouped(plan.total_batch_size()), plan.size.gradient_accumulation_steps, grouped(plan.max_steps),
      grouped(plan.size.trainable_parameters));
}

std::string text_of(const Metrics& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics) {
    text += fmt::format("{}'{}': {}", text.empty() ? "" : ", ", name, number_text(value));
  }
  return "{" + text + "}";
}

Metrics speed_metrics(const std::string& prefix, double seconds, int64_t samples, int64_t steps) {
  const double least = std::max(seconds, 1e-9);  // for clocks with a coarse resolution
  return {{prefix + "_runtime", rounded(seconds, 4)},
          {prefix + "_samples_per_second", rounded(static_cast<double>(samples) / least, 3)},
          {prefix + "_steps_per_second", rounded(static_cast<double>(steps) / least, 3)}};
}

}  // namespace accelerate::trainer
