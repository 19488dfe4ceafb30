// SPDX-License-Identifier: Apache-2.0
// Arguments of a Trainer with transformers' names, meanings and defaults, but nothing is saved or reported by default.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/base/error.hpp"

namespace accelerate::trainer {

/// When to log, evaluate or save: never, every N optimizer steps, or at the end of each epoch.
enum class IntervalStrategy { no, steps, epoch };

/// Schedules of transformers that advance with the optimizer steps. All except `constant` start with a warm-up.
enum class SchedulerType {
  linear,
  cosine,
  cosine_with_restarts,
  polynomial,
  constant,
  constant_with_warmup,
  inverse_sqrt,
};

[[nodiscard]] std::string_view interval_strategy_name(IntervalStrategy strategy);
[[nodiscard]] std::string_view scheduler_type_name(SchedulerType type);

/// Arguments of a training. Steps are optimizer steps of the whole job, not micro-batches.
struct TrainingArguments {
  /// Batch size of one rank, in samples.
  int64_t per_device_train_batch_size = 8;
  int64_t per_device_eval_batch_size = 8;
  /// Passes over the training set. A fraction ends training within an epoch.
  double num_train_epochs = 3.0;
  /// If positive, training makes this number of steps and ignores num_train_epochs.
  int64_t max_steps = -1;
  /// Micro-batches per optimizer step. If unset, the value from the launcher or the config file is used; otherwise 1.
  std::optional<int64_t> gradient_accumulation_steps{};

  double learning_rate = 5e-5;
  /// Weight decay of AdamW. It applies to parameters with more than one dimension, so not to biases and norm weights.
  double weight_decay = 0.0;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  /// Maximum norm of all gradients together. If 0, gradients are not clipped, but their norm is still logged.
  double max_grad_norm = 1.0;
  SchedulerType lr_scheduler_type = SchedulerType::linear;
  /// Steps in which the learning rate rises from 0. If a training has fewer steps, it ends during the warm-up. Excludes
  /// warmup_ratio and the schedule `constant`.
  int64_t warmup_steps = 0;
  /// The warm-up as a fraction of all steps, 0 to 1. The number of steps is rounded up.
  double warmup_ratio = 0.0;

  /// Autocast of forward and backward to bfloat16 or float16. If both are false, the precision from the launcher or the
  /// config file is used; otherwise float32.
  bool bf16 = false;
  bool fp16 = false;

  IntervalStrategy eval_strategy = IntervalStrategy::no;
  /// Steps between evaluations with eval_strategy `steps`, which also evaluates after the last planned step. If unset,
  /// logging_steps is used.
  std::optional<int64_t> eval_steps{};
  /// First step (epoch with eval_strategy `epoch`) that an evaluation may follow.
  double eval_delay = 0;
  IntervalStrategy logging_strategy = IntervalStrategy::steps;
  /// If true, the first step is logged as well.
  bool logging_first_step = false;
  int64_t logging_steps = 500;

  /// Folder of the checkpoints (subfolder "checkpoints") and of best_model. If empty, neither can be saved.
  std::filesystem::path output_dir{};
  /// When to save a checkpoint for a resume. Unless this is `no`, the last step is saved as well.
  IntervalStrategy save_strategy = IntervalStrategy::no;
  int64_t save_steps = 500;
  /// Number of newest checkpoints to keep, at least 1. If unset, all are kept.
  std::optional<int64_t> save_total_limit{};
  /// If true, one process per machine saves instead of one per job: for machines that do not share the disk of
  /// output_dir.
  bool save_on_each_node = false;
  /// Folder of a checkpoint, or an output_dir, in which the newest checkpoint is used. train() continues at the exact
  /// position of the checkpoint, on the same data. The world size may differ if a step takes the same number of
  /// samples; otherwise train() throws. After a train() has completed, the next one trains from the current weights.
  std::optional<std::filesystem::path> resume_from_checkpoint{};
  /// If true, output_dir/best_model has the weights of the best evaluation, and train() loads them at its end.
  bool load_best_model_at_end = false;

  /// Metric that compares evaluations, with or without "eval_". If unset, the loss is used.
  std::optional<std::string> metric_for_best_model{};
  /// If unset, greater is better unless the metric's name ends in "loss".
  std::optional<bool> greater_is_better{};
  /// Keys of the batch entries that compute_metrics receives and predict() returns as label_ids.
  std::vector<std::string> label_names{"labels"};

  /// Seed of the data order, of dropout (rank r uses seed + r) and of all other random numbers after the Trainer's
  /// construction. Does not affect the initial weights: call set_seed() before you create the model.
  uint64_t seed = 42;
  /// Seed of the data order. If unset, `seed` is used.
  std::optional<uint64_t> data_seed{};

  /// Threads per rank that load batches ahead. If 0, each batch is loaded on demand.
  int64_t dataloader_num_workers = 0;
  /// Batches that each worker loads ahead. If unset, 2.
  std::optional<int64_t> dataloader_prefetch_factor{};
  bool dataloader_pin_memory = true;
  /// If true, the last training samples are dropped unless they fill a batch on every rank. Evaluation drops no
  /// samples.
  bool dataloader_drop_last = false;

  /// Trackers that record the logs: "tensorboard", "csv", "jsonl", or "all". TrainerParts::accelerator.log_with adds
  /// user-defined ones. Without a tracker, logging_dir and run_name are refused, because transformers would report;
  /// `{"none"}` allows them.
  std::vector<std::string> report_to{};
  /// Folder of the trackers' files. If unset, output_dir/runs is used.
  std::optional<std::filesystem::path> logging_dir{};
  /// Subfolder of logging_dir for this run. If unset, "train".
  std::optional<std::string> run_name{};
  /// If true, no progress bar is shown.
  bool disable_tqdm = false;
  /// If false, train() and evaluations outside it also measure this rank's memory in bytes: train_mem_cpu_alloc_delta,
  /// train_mem_cpu_peaked_delta, and "gpu" for an accelerator. Each measurement resets the peaks of
  /// Accelerator::memory().
  bool skip_memory_metrics = true;
};

/// Other settings that the arguments must be consistent with.
struct ArgumentsContext {
  bool has_eval_dataset = false;
  bool has_own_trackers = false;  ///< in TrainerParts::accelerator
  RankContext place{};
};

/// \throws Error (usage) if a value is out of range or arguments contradict one another.
void check_training_arguments(const TrainingArguments& arguments, const ArgumentsContext& context);

/// Returns report_to without "none".
[[nodiscard]] std::vector<std::string> trackers_of(const TrainingArguments& arguments);

/// Returns the name of the metric that compares evaluations, with its prefix: "eval_loss".
[[nodiscard]] std::string best_metric_name(const TrainingArguments& arguments);
[[nodiscard]] bool greater_is_better(const TrainingArguments& arguments);

}  // namespace accelerate::trainer
