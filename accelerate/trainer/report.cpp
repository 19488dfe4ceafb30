// SPDX-License-Identifier: Apache-2.0
#include "accelerate/trainer/report.hpp"

#include <exception>
#include <filesystem>
#include <system_error>

#include "accelerate/base/log.hpp"
#include "accelerate/trainer/trainer_base.hpp"

namespace accelerate::trainer {
namespace {

tracking::Values configuration(const TrainingArguments& arguments, Accelerator& accelerator, const TrainingPlan& plan) {
  return {{"learning_rate", arguments.learning_rate},
          {"weight_decay", arguments.weight_decay},
          {"max_grad_norm", arguments.max_grad_norm},
          {"lr_scheduler_type", scheduler_type_name(arguments.lr_scheduler_type)},
          {"warmup_steps", plan.warmup_steps},
          {"per_device_train_batch_size", arguments.per_device_train_batch_size},
          {"gradient_accumulation_steps", plan.size.gradient_accumulation_steps},
          {"num_train_epochs", plan.num_train_epochs},
          {"max_steps", plan.max_steps},
          {"num_processes", accelerator.num_processes()},
          {"seed", static_cast<int64_t>(arguments.seed)}};
}

/// Warns if the run's folder has reports of another run. A resumed training extends its reports on purpose.
void log_existing_report(const TrainerContext& now) {
  const auto& arguments = now.arguments;
  if (trackers_of(arguments).empty() || arguments.resume_from_checkpoint || !now.state.is_world_process_zero) return;
  const auto folder =
      arguments.logging_dir.value_or(arguments.output_dir / "runs") / arguments.run_name.value_or("train");
  std::error_code none;
  if (!std::filesystem::is_directory(folder, none) || std::filesystem::is_empty(folder, none)) return;
  base::log(base::LogLevel::warning, now.trainer.accelerator().place(),
            "report_to: {} has the report of another run, to which this one is added; set another run_name to "
            "keep them apart",
            folder.string());
}

/// Starts the trackers. A failure on the main process is thrown on every rank.
void begin_on_all_ranks(const TrainerContext& now) {
  Accelerator& accelerator = now.trainer.accelerator();
  std::string failure;
  try {
    accelerator.init_trackers(now.arguments.run_name.value_or("train"),
                              configuration(now.arguments, accelerator, now.trainer.plan()));
  } catch (const std::exception& error) {
    if (!accelerator.use_distributed()) throw;
    failure = error.what();
  }
  for (const auto& message : accelerator.gather_object(failure)) {
    if (!message.empty()) base::fail(ErrorKind::io, accelerator.place(), "report_to", "{}", message);
  }
}

}  // namespace

std::string reported_name(const std::string& name) {
  for (const std::string prefix : {"eval", "test"}) {
    if (name.starts_with(prefix + "_")) return prefix + "/" + name.substr(prefix.size() + 1);
  }
  return "train/" + name;
}

void ReportCallback::on_train_begin(const TrainerContext& now, TrainerControl&) {
  if (begun_) return;  // a second train() continues the run
  log_existing_report(now);
  begin_on_all_ranks(now);
  begun_ = true;
}

void ReportCallback::on_log(const TrainerContext& now, TrainerControl&) {
  if (!begun_) return;
  tracking::Values values;
  for (const auto& [name, value] : now.metrics) values.emplace_back(reported_name(name), value);
  now.trainer.accelerator().log(values, now.state.global_step);
}

}  // namespace accelerate::trainer
