// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <cmath>

#include "accelerate/trainer/arguments.hpp"

using accelerate::RankContext;
using namespace accelerate::trainer;

namespace {

std::string refusal(const TrainingArguments& arguments, bool has_eval_dataset = true) {
  try {
    check_training_arguments(arguments, {.has_eval_dataset = has_eval_dataset,
                                         .place = RankContext{.rank = 3, .world_size = 8, .host = "gpu-b"}});
  } catch (const accelerate::Error& error) {
    CHECK(error.kind() == accelerate::ErrorKind::usage);
    const std::string text = error.what(), place = "[rank 3 of 8, gpu-b] TrainingArguments: ";
    CHECK(text.starts_with(place));
    return text.substr(place.size());
  }
  return "";
}

}  // namespace

TEST_CASE("the defaults are consistent") { CHECK(refusal({}, false).empty()); }

TEST_CASE("numbers out of their range are refused with the name, the value and the range") {
  const double nan = std::nan("");
  const std::vector<std::pair<TrainingArguments, std::string>> cases{
      {{.per_device_train_batch_size = 0}, "per_device_train_batch_size is 0, must be at least 1"},
      {{.per_device_eval_batch_size = -1}, "per_device_eval_batch_size is -1, must be at least 1"},
      {{.num_train_epochs = 0}, "num_train_epochs is 0, must be a finite number above 0"},
      {{.num_train_epochs = nan}, "num_train_epochs is nan, must be a finite number above 0"},
      {{.gradient_accumulation_steps = 0}, "gradient_accumulation_steps is 0, must be at least 1"},
      {{.learning_rate = -0.1}, "learning_rate is -0.1, must be a finite number of at least 0"},
      {{.weight_decay = nan}, "weight_decay is nan, must be a finite number of at least 0"},
      {{.adam_beta1 = 1.0}, "adam_beta1 is 1, must be at least 0 and below 1"},
      {{.adam_beta2 = -1.0}, "adam_beta2 is -1, must be at least 0 and below 1"},
      {{.adam_epsilon = -1.0}, "adam_epsilon is -1, must be a finite number of at least 0"},
      {{.max_grad_norm = -1}, "max_grad_norm is -1, must be a finite number of at least 0"},
      {{.warmup_steps = -1}, "warmup_steps is -1, must be at least 0"},
      {{.warmup_ratio = 1.5}, "warmup_ratio is 1.5, must be between 0 and 1"},
      {{.eval_strategy = IntervalStrategy::steps, .eval_steps = 0}, "eval_steps is 0, must be at least 1"},
      {{.eval_delay = -2}, "eval_delay is -2, must be a finite number of at least 0"},
      {{.logging_steps = 0}, "logging_steps is 0, must be at least 1"},
      {{.save_steps = 0}, "save_steps is 0, must be at least 1"},
      {{.save_total_limit = 0}, "save_total_limit is 0, must be at least 1"},
      {{.dataloader_num_workers = -1}, "dataloader_num_workers is -1, must be at least 0"},
      {{.dataloader_num_workers = 1, .dataloader_prefetch_factor = 0},
       "dataloader_prefetch_factor is 0, must be at least 1"}};
  for (const auto& [arguments, text] : cases) CHECK(refusal(arguments) == text);
}

TEST_CASE("num_train_epochs is ignored if max_steps is given") {
  CHECK(refusal({.num_train_epochs = 0, .max_steps = 10}).empty());
}

TEST_CASE("contradicting arguments are refused") {
  CHECK(refusal({.bf16 = true, .fp16 = true}) == "bf16 and fp16 are both true, only one of them can be");
  CHECK(refusal({.warmup_steps = 100, .warmup_ratio = 0.1}) ==
        "warmup_steps is 100 and warmup_ratio is 0.1, only one of them can be given");
  CHECK(refusal({.lr_scheduler_type = SchedulerType::constant, .warmup_steps = 100}) ==
        "warmup_steps is 100, lr_scheduler_type is constant, which has no warm-up; use constant_with_warmup");
  CHECK(refusal({.lr_scheduler_type = SchedulerType::constant, .warmup_ratio = 0.1}) ==
        "warmup_ratio is 0.1, lr_scheduler_type is constant, which has no warm-up; use constant_with_warmup");
  CHECK(refusal({.eval_delay = 3}) ==
        "eval_delay is 3, eval_strategy is no; nothing is evaluated: give eval_strategy steps or epoch");
  CHECK(refusal({.eval_steps = 100}) ==
        "eval_steps is 100, eval_strategy is no; eval_steps counts with eval_strategy steps only");
  CHECK(refusal({.eval_strategy = IntervalStrategy::epoch, .eval_steps = 5}) ==
        "eval_steps is 5, eval_strategy is epoch; eval_steps counts with eval_strategy steps only");
  CHECK(refusal({.eval_strategy = IntervalStrategy::epoch}, /*has_eval_dataset=*/false) ==
        "eval_strategy is epoch, eval_dataset is not set; set it, or set eval_strategy to no");
  CHECK(refusal({.metric_for_best_model = "accuracy"}) ==
        "metric_for_best_model is \"accuracy\", eval_strategy is no; only evaluations during training determine which "
        "model is best: give eval_strategy steps or epoch");
  CHECK(refusal({.save_strategy = IntervalStrategy::epoch}) ==
        "save_strategy is epoch, output_dir is empty; checkpoints need a folder");
  CHECK(refusal({.save_total_limit = 2}) == "save_total_limit is 2, save_strategy is no; nothing is saved");
  CHECK(refusal({.output_dir = "x", .load_best_model_at_end = true}) ==
        "load_best_model_at_end is true, eval_strategy is no; only evaluations during training determine which model "
        "is best: give eval_strategy steps or epoch");
  CHECK(refusal({.eval_strategy = IntervalStrategy::epoch, .load_best_model_at_end = true}) ==
        "load_best_model_at_end is true, output_dir is empty; the best model's weights need a folder");
  CHECK(refusal({.dataloader_prefetch_factor = 4}) ==
        "dataloader_prefetch_factor is 4, dataloader_num_workers is 0; only workers read ahead");
}

TEST_CASE("reporting requires consistent trackers and a folder") {
  CHECK(refusal({.report_to = {"none"}}).empty());
  CHECK(refusal({.report_to = {"csv"}, .logging_dir = "logs"}).empty());
  CHECK(refusal({.report_to = {"csv", "jsonl"}}) ==
        "report_to is \"csv\" and \"jsonl\", logging_dir and output_dir are empty; reports need a folder");
  CHECK(refusal({.output_dir = "x", .report_to = {"none", "csv"}}) ==
        "report_to is \"none\" and \"csv\"; \"none\" must be the only entry");
}

TEST_CASE("a logging folder or run name without trackers is refused unless report_to is none or trackers are custom") {
  const std::string what =
      "report_to is empty; nothing is reported: name trackers in report_to (\"tensorboard\", \"csv\", \"jsonl\"), or "
      "\"none\" to mean it";
  CHECK(refusal({.run_name = "mine"}) == "run_name is \"mine\", " + what);
  CHECK(refusal({.output_dir = "x", .logging_dir = "logs"}) == "logging_dir is \"logs\", " + what);
  CHECK(refusal({.report_to = {"none"}, .logging_dir = "logs", .run_name = "mine"}).empty());
  CHECK_NOTHROW(check_training_arguments({.logging_dir = "logs", .run_name = "mine"}, {.has_own_trackers = true}));
}

TEST_CASE("greater is better for all metrics except losses unless specified") {
  CHECK(best_metric_name({}) == "eval_loss");
  CHECK(best_metric_name({.metric_for_best_model = "eval_f1"}) == "eval_f1");
  CHECK(best_metric_name({.metric_for_best_model = "f1"}) == "eval_f1");
  CHECK(!greater_is_better({}));
  CHECK(!greater_is_better({.metric_for_best_model = "token_loss"}));
  CHECK(greater_is_better({.metric_for_best_model = "f1"}));
  CHECK(!greater_is_better({.metric_for_best_model = "perplexity", .greater_is_better = false}));
}
