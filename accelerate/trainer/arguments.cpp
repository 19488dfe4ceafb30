// SPDX-License-Identifier: Apache-2.0
#include "accelerate/trainer/arguments.hpp"

#include <cmath>
#include <string_view>

#include "accelerate/trainer/best_metric.hpp"

namespace accelerate::trainer {
namespace {

/// Checks with a uniform error text: the argument, its value and the allowed values.
class ArgumentCheck {
 public:
  explicit ArgumentCheck(const RankContext& place) : place_(place) {}

  template <typename Number>
  void at_least(std::string_view argument, Number value, Number least) const {
    if (value < least) fail("{} is {}, must be at least {}", argument, value, least);
  }
  void positive(std::string_view argument, double value) const {
    if (!(std::isfinite(value) && value > 0)) fail("{} is {}, must be a finite number above 0", argument, value);
  }
  void not_negative(std::string_view argument, double value) const {
    if (!(std::isfinite(value) && value >= 0)) fail("{} is {}, must be a finite number of at least 0", argument, value);
  }
  void below_one(std::string_view argument, double value) const {
    if (!(value >= 0 && value < 1)) fail("{} is {}, must be at least 0 and below 1", argument, value);
  }
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    base::fail(ErrorKind::usage, place_, "TrainingArguments", format, std::forward<Args>(args)...);
  }

 private:
  const RankContext& place_;
};

void check_ranges(const TrainingArguments& given, const ArgumentCheck& must_be) {
  must_be.at_least<int64_t>("per_device_train_batch_size", given.per_device_train_batch_size, 1);
  must_be.at_least<int64_t>("per_device_eval_batch_size", given.per_device_eval_batch_size, 1);
  if (given.max_steps <= 0) must_be.positive("num_train_epochs", given.num_train_epochs);
  must_be.at_least<int64_t>("gradient_accumulation_steps", given.gradient_accumulation_steps.value_or(1), 1);
  must_be.not_negative("learning_rate", given.learning_rate);
  must_be.not_negative("weight_decay", given.weight_decay);
  must_be.below_one("adam_beta1", given.adam_beta1);
  must_be.below_one("adam_beta2", given.adam_beta2);
  must_be.not_negative("adam_epsilon", given.adam_epsilon);
  must_be.not_negative("max_grad_norm", given.max_grad_norm);
  must_be.at_least<int64_t>("warmup_steps", given.warmup_steps, 0);
  if (!(given.warmup_ratio >= 0 && given.warmup_ratio <= 1)) {
    must_be.fail("warmup_ratio is {}, must be between 0 and 1", given.warmup_ratio);
  }
  must_be.at_least<int64_t>("eval_steps", given.eval_steps.value_or(1), 1);
  must_be.not_negative("eval_delay", given.eval_delay);
  must_be.at_least<int64_t>("logging_steps", given.logging_steps, 1);
  must_be.at_least<int64_t>("dataloader_num_workers", given.dataloader_num_workers, 0);
  must_be.at_least<int64_t>("dataloader_prefetch_factor", given.dataloader_prefetch_factor.value_or(1), 1);
}

void check_evaluation(const TrainingArguments& given, const ArgumentsContext& context, const ArgumentCheck& must_be) {
  const bool evaluates = given.eval_strategy != IntervalStrategy::no;
  if (given.eval_steps && given.eval_strategy != IntervalStrategy::steps) {
    must_be.fail("eval_steps is {}, eval_strategy is {}; eval_steps counts with eval_strategy steps only",
                 *given.eval_steps, interval_strategy_name(given.eval_strategy));
  }
  if (given.eval_delay > 0 && !evaluates) {
    must_be.fail("eval_delay is {}, eval_strategy is no; nothing is evaluated: give eval_strategy steps or epoch",
                 given.eval_delay);
  }
  if (evaluates && !context.has_eval_dataset) {
    must_be.fail("eval_strategy is {}, eval_dataset is not set; set it, or set eval_strategy to no",
                 interval_strategy_name(given.eval_strategy));
  }
  if (given.metric_for_best_model && !evaluates) {
    must_be.fail(
        "metric_for_best_model is \"{}\", eval_strategy is no; only evaluations during training determine which model "
        "is best: give eval_strategy steps or epoch",
        *given.metric_for_best_model);
  }
}

void check_saving(const TrainingArguments& given, const ArgumentCheck& must_be) {
  must_be.at_least<int64_t>("save_steps", given.save_steps, 1);
  must_be.at_least<int64_t>("save_total_limit", given.save_total_limit.value_or(1), 1);
  const bool saves = given.save_strategy != IntervalStrategy::no;
  if (saves && given.output_dir.empty()) {
    must_be.fail("save_strategy is {}, output_dir is empty; checkpoints need a folder",
                 interval_strategy_name(given.save_strategy));
  }
  if (given.save_total_limit && !saves) {
    must_be.fail("save_total_limit is {}, save_strategy is no; nothing is saved", *given.save_total_limit);
  }
  if (!given.load_best_model_at_end) return;
  if (given.eval_strategy == IntervalStrategy::no) {
    must_be.fail(
        "load_best_model_at_end is true, eval_strategy is no; only evaluations during training determine which model "
        "is best: give eval_strategy steps or epoch");
  }
  if (given.output_dir.empty()) {
    must_be.fail("load_best_model_at_end is true, output_dir is empty; the best model's weights need a folder");
  }
}

void check_reports(const TrainingArguments& given, const ArgumentsContext& context, const ArgumentCheck& must_be) {
  const auto unheard = [&](std::string_view argument, const std::string& value) {
    must_be.fail(
        "{} is \"{}\", report_to is empty; nothing is reported: name trackers in report_to (\"tensorboard\", \"csv\", "
        "\"jsonl\"), or \"none\" to mean it",
        argument, value);
  };
  if (given.report_to.empty() && !context.has_own_trackers) {
    if (given.run_name) unheard("run_name", *given.run_name);
    if (given.logging_dir) unheard("logging_dir", given.logging_dir->string());
  }
  const auto trackers = trackers_of(given);
  if (trackers.empty()) return;
  if (trackers.size() < given.report_to.size()) {
    must_be.fail("report_to is {}; \"none\" must be the only entry", quoted_names(given.report_to));
  }
  if (!given.logging_dir && given.output_dir.empty()) {
    must_be.fail("report_to is {}, logging_dir and output_dir are empty; reports need a folder",
                 quoted_names(trackers));
  }
}

}  // namespace

std::string_view scheduler_type_name(SchedulerType type) {
  switch (type) {
    case SchedulerType::linear:
      return "linear";
    case SchedulerType::cosine:
      return "cosine";
    case SchedulerType::cosine_with_restarts:
      return "cosine_with_restarts";
    case SchedulerType::polynomial:
      return "polynomial";
    case SchedulerType::constant:
      return "constant";
    case SchedulerType::constant_with_warmup:
      return "constant_with_warmup";
    case SchedulerType::inverse_sqrt:
      return "inverse_sqrt";
  }
  return "?";
}

std::string_view interval_strategy_name(IntervalStrategy strategy) {
  switch (strategy) {
    case IntervalStrategy::no:
      return "no";
    case IntervalStrategy::steps:
      return "steps";
    case IntervalStrategy::epoch:
      return "epoch";
  }
  return "?";
}

void check_training_arguments(const TrainingArguments& arguments, const ArgumentsContext& context) {
  const ArgumentCheck must_be(context.place);
  check_ranges(arguments, must_be);
  if (arguments.bf16 && arguments.fp16) must_be.fail("bf16 and fp16 are both true, only one of them can be");
  if (arguments.warmup_steps > 0 && arguments.warmup_ratio > 0) {
    must_be.fail("warmup_steps is {} and warmup_ratio is {}, only one of them can be given", arguments.warmup_steps,
                 arguments.warmup_ratio);
  }
  const bool warms_up = arguments.warmup_steps > 0 || arguments.warmup_ratio > 0;
  if (warms_up && arguments.lr_scheduler_type == SchedulerType::constant) {
    must_be.fail("{}, lr_scheduler_type is constant, which has no warm-up; use constant_with_warmup",
                 arguments.warmup_steps > 0 ? fmt::format("warmup_steps is {}", arguments.warmup_steps)
                                            : fmt::format("warmup_ratio is {}", arguments.warmup_ratio));
  }
  if (arguments.dataloader_prefetch_factor && arguments.dataloader_num_workers == 0) {
    must_be.fail("dataloader_prefetch_factor is {}, dataloader_num_workers is 0; only workers read ahead",
                 *arguments.dataloader_prefetch_factor);
  }
  check_evaluation(arguments, context, must_be);
  check_saving(arguments, must_be);
  check_reports(arguments, context, must_be);
}

std::vector<std::string> trackers_of(const TrainingArguments& arguments) {
  auto names = arguments.report_to;
  std::erase(names, "none");
  return names;
}

std::string best_metric_name(const TrainingArguments& arguments) {
  const std::string metric = arguments.metric_for_best_model.value_or("loss");
  return metric.starts_with("eval_") ? metric : "eval_" + metric;
}

bool greater_is_better(const TrainingArguments& arguments) {
  return arguments.greater_is_better.value_or(!best_metric_name(arguments).ends_with("loss"));
}

}  // namespace accelerate::trainer
