// SPDX-License-Identifier: Apache-2.0
#include "accelerate/trainer/trainer_base.hpp"

#include <ATen/ops/full.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "accelerate/trainer/best_metric.hpp"
#include "accelerate/trainer/default_flow.hpp"
#include "accelerate/trainer/printer.hpp"
#include "accelerate/trainer/progress.hpp"
#include "accelerate/trainer/report.hpp"

namespace accelerate::trainer {
namespace {

[[noreturn]] void throw_nested_call(const char* argument, const auto& one, const auto& other) {
  base::fail(ErrorKind::usage, {}, "Trainer",
             "{} is {} in TrainingArguments and {} in AcceleratorOptions; set it only once", argument, one, other);
}

std::string_view precision_name(Precision precision) {
  return precision == Precision::bf16 ? "bf16" : precision == Precision::fp16 ? "fp16" : "no";
}

/// Returns the options with the values of the arguments.
/// \throws Error (usage) if the options have other values, or are not supported by a Trainer.
AcceleratorOptions merged(const TrainingArguments& arguments, AcceleratorOptions options, bool has_eval_dataset) {
  check_training_arguments(arguments,
                           {.has_eval_dataset = has_eval_dataset, .has_own_trackers = !options.log_with.empty()});
  if (arguments.bf16 || arguments.fp16) {
    const auto requested = arguments.bf16 ? Precision::bf16 : Precision::fp16;
    if (options.mixed_precision && *options.mixed_precision != requested) {
      throw_nested_call("mixed precision", precision_name(requested), precision_name(*options.mixed_precision));
    }
    options.mixed_precision = requested;
  }
  if (const auto steps = arguments.gradient_accumulation_steps) {
    if (options.gradient_accumulation_steps.value_or(*steps) != *steps) {
      throw_nested_call("gradient_accumulation_steps", *steps, *options.gradient_accumulation_steps);
    }
    options.gradient_accumulation_steps = steps;
  }
  if (!arguments.output_dir.empty()) {
    if (!options.project.project_dir.empty()) {
      throw_nested_call("the folder for checkpoints", arguments.output_dir.string(),
                        options.project.project_dir.string());
    }
    options.project.project_dir = arguments.output_dir;
    if (arguments.save_total_limit) options.project.total_limit = arguments.save_total_limit;
    if (arguments.save_on_each_node) options.project.save_on_each_node = true;
  }
  for (const auto& tracker : trackers_of(arguments)) options.log_with.emplace_back(tracker);
  if (arguments.logging_dir) {
    if (options.logging_dir.value_or(arguments.logging_dir->string()) != arguments.logging_dir->string()) {
      throw_nested_call("logging_dir", arguments.logging_dir->string(), *options.logging_dir);
    }
    options.logging_dir = arguments.logging_dir->string();
  } else if (!options.logging_dir && !arguments.output_dir.empty()) {
    options.logging_dir = (arguments.output_dir / "runs").string();
  }
  if (!options.even_batches) {
    base::fail(ErrorKind::usage, {}, "Trainer",
               "even_batches is false; ranks would make different numbers of steps: keep it true, or set "
               "dataloader_drop_last");
  }
  if (!options.accumulation.sync_with_dataloader) {
    base::fail(ErrorKind::usage, {}, "Trainer",
               "sync_with_dataloader is false; an epoch of a Trainer ends with a step: keep it true");
  }
  if (options.scheduler_unit == SchedulerUnit::processes) {
    base::fail(
        ErrorKind::usage, {}, "Trainer",
        "scheduler_unit is processes; a Trainer makes its schedule of the training's optimizer steps, which would "
        "end after a part of them: keep optimizer_steps");
  }
  return options;
}

bool all_ranks_agree(const std::vector<std::shared_ptr<TrainerCallback>>& callbacks) {
  return std::ranges::all_of(callbacks, [](const auto& one) { return one->decides_same_on_all_ranks(); });
}

}  // namespace

TrainerBase::TrainerBase(TrainingArguments arguments, TrainerParts parts)
    : arguments_(std::move(arguments)),
      parts_(std::move(parts)),
      accelerator_(merged(arguments_, parts_.accelerator, parts_.eval_dataset != nullptr)) {
  if (const int64_t size = accelerator_.context_parallel_group().size(); size > 1) {
    // Otherwise each rank would choose the best model by the evaluation of its own tokens.
    base::fail(ErrorKind::usage, accelerator_.place(), "Trainer",
               "cp_size is {}, and Trainer does not divide sequences; set cp_size to 1, or write a loop with "
               "context_parallel_split()",
               size);
  }
  arguments_.save_on_each_node |= parts_.accelerator.project.save_on_each_node;
  accelerator_.set_seed(arguments_.seed, {.device_specific = true});
  state_.is_local_process_zero = accelerator_.is_local_main_process();
  state_.is_world_process_zero = accelerator_.is_main_process();
  register_state();
  callbacks_ = {std::make_shared<DefaultFlowCallback>()};
  if (!trackers_of(arguments_).empty() || !parts_.accelerator.log_with.empty()) {
    callbacks_.push_back(std::make_shared<ReportCallback>());
  }
  if (!arguments_.disable_tqdm) callbacks_.push_back(std::make_shared<ProgressCallback>());
  callbacks_.push_back(std::make_shared<PrinterCallback>());
  for (auto& callback : parts_.callbacks) add_callback(callback);
}

TrainerBase::~TrainerBase() = default;

void TrainerBase::add_callback(std::shared_ptr<TrainerCallback> callback) {
  if (callback == nullptr) base::fail(ErrorKind::usage, accelerator_.place(), "add_callback", "the callback is null");
  const bool prints = !callbacks_.empty() && dynamic_cast<PrinterCallback*>(callbacks_.back().get()) != nullptr;
  callbacks_.insert(callbacks_.end() - (prints ? 1 : 0), std::move(callback));
}

const TrainingPlan& TrainerBase::plan() const {
  if (!plan_) base::fail(ErrorKind::usage, accelerator_.place(), "plan", "there is none before train()");
  return *plan_;
}

void TrainerBase::fire(Event event, const Metrics& metrics, bool for_best) {
  const TrainerContext now{arguments_, state_, *this, metrics, for_best};
  const auto callbacks = callbacks_;  // a copy, because callbacks may add or remove callbacks
  for (const auto& callback : callbacks) (callback.get()->*event)(now, control_);
}

// Ranks may have different callbacks, for example one on the main process only.
void TrainerBase::check_same_callbacks() {
  callbacks_agree_ = all_ranks_agree(callbacks_);
  if (!accelerator_.use_distributed()) return;
  const at::Tensor differ = at::full({1}, callbacks_agree_ ? 0 : 1, at::kLong);
  callbacks_agree_ = accelerator_.reduce(differ, comm::ReduceOp::max).item<int64_t>() == 0;
}

void TrainerBase::agree() {
  // Checks again for callbacks added since on_train_begin, which must be added on every rank.
  if ((callbacks_agree_ && all_ranks_agree(callbacks_)) || !accelerator_.use_distributed()) return;
  const at::Tensor wishes = at::empty({5}, at::kLong);
  auto* wish = wishes.mutable_data_ptr<int64_t>();
  bool* flags[] = {&control_.should_training_stop, &control_.should_epoch_stop, &control_.should_log,
                   &control_.should_evaluate, &control_.should_save};
  for (size_t i = 0; i < 5; ++i) wish[i] = *flags[i] ? 1 : 0;
  const at::Tensor all = accelerator_.reduce(wishes, comm::ReduceOp::max);
  for (size_t i = 0; i < 5; ++i) *flags[i] = all.const_data_ptr<int64_t>()[i] != 0;
}

void TrainerBase::log(Metrics logs) {
  logs["epoch"] = state_.epoch;
  Metrics entry = logs;
  entry["step"] = static_cast<double>(state_.global_step);
  state_.log_history.push_back(std::move(entry));
  fire(&TrainerCallback::on_log, logs);
}

/// Replaces the metric for decisions by rank 0's value, because times and random metrics differ between ranks.
void TrainerBase::decide_by_rank_0(Metrics& metrics) const {
  if (!accelerator_.use_distributed()) return;
  const auto found = metrics.find(best_metric_name(arguments_));
  const std::string mine = found == metrics.end() ? "" : fmt::to_string(std::bit_cast<uint64_t>(found->second));
  const std::string all = accelerator_.broadcast_object(mine);
  if (found != metrics.end() && !all.empty()) found->second = std::bit_cast<double>(uint64_t{std::stoull(all)});
}

void TrainerBase::note_best(const Metrics& metrics) {
  const std::string metric = best_metric_name(arguments_);
  const bool is_requested = arguments_.metric_for_best_model || arguments_.load_best_model_at_end;
  if (!is_requested && !metrics.contains(metric)) return;
  const double value = metric_of(metrics, metric, "metric_for_best_model", accelerator_.place());
  if (!is_better(arguments_, value, state_.best_metric)) return;
  state_.best_metric = value;
  state_.best_global_step = state_.global_step;
  keep_best();
}

}  // namespace accelerate::trainer
