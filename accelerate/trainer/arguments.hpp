// SPDX-License-Identifier: Apache-2.0
// What a Trainer can be told: transformers' names, meaning and defaults, but that nothing is saved or reported unasked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/base/error.hpp"

namespace accelerate::trainer {

/// When something happens: never, every so many optimizer steps, at the end of each epoch.
enum class IntervalStrategy { no, steps, epoch };

/// transformers' schedules that follow the steps; each warms up first, but constant.
enum class SchedulerType {
  linear,
  cosine,
  cosine_with_restarts,
  polynomial,
  constant,
  constant_with_warmup,
  inverse_sqrt,
};

[[nodiscard]] std::string_view name(IntervalStrategy strategy);
[[nodiscard]] std::string_view name(SchedulerType type);

/// Steps are optimizer steps of the whole job, not micro-batches.
struct TrainingArguments {
  /// Samples per batch of one rank.
  int64_t per_device_train_batch_size = 8;
  int64_t per_device_eval_batch_size = 8;
  /// Passes over the training set; a fraction ends within one.
  double num_train_epochs = 3.0;
  /// Above 0: so many steps, whatever num_train_epochs says.
  int64_t max_steps = -1;
  /// Micro-batches summed into one step. Unset: what the launcher says, else 1.
  std::optional<int64_t> gradient_accumulation_steps{};

  double learning_rate = 5e-5;
  /// AdamW's, of parameters with more than one dimension: not of biases and of the weights of norms.
  double weight_decay = 0.0;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  /// Largest norm of all gradients. If 0, gradients are not clipped; their norm is logged all the same.
  double max_grad_norm = 1.0;
  SchedulerType lr_scheduler_type = SchedulerType::linear;
  /// Steps in which the rate rises from 0; excludes warmup_ratio. A training with fewer steps ends while the rate still
  /// rises. With the schedule constant it is refused.
  int64_t warmup_steps = 0;
  /// The same as a part of all steps, 0 to 1, rounded up.
  double warmup_ratio = 0.0;

  /// Forward and backward in bfloat16 or float16. Both false: what the launcher says, else float32.
  bool bf16 = false;
  bool fp16 = false;

  IntervalStrategy eval_strategy = IntervalStrategy::no;
  /// Steps between two evaluations with eval_strategy steps, which also evaluates after the last step of max_steps. If
  /// unset, logging_steps is used.
  std::optional<int64_t> eval_steps{};
  /// First step (with eval_strategy epoch: epoch) that may end in an evaluation.
  double eval_delay = 0;
  IntervalStrategy logging_strategy = IntervalStrategy::steps;
  /// Also the first step is logged.
  bool logging_first_step = false;
  int64_t logging_steps = 500;

  /// Where checkpoints go, in its folder "checkpoints", and best_model. Empty: nothing can be saved.
  std::filesystem::path output_dir{};
  /// When all that a training needs to go on is saved; after the last step too, but with no.
  IntervalStrategy save_strategy = IntervalStrategy::no;
  int64_t save_steps = 500;
  /// So many checkpoints are kept, the newest. Unset: all.
  std::optional<int64_t> save_total_limit{};
  /// One process of each machine saves, not one of the job: for machines that do not share the disk of output_dir.
  bool save_on_each_node = false;
  /// A checkpoint's folder, or an output_dir, of which the newest is taken: train() goes on there, with the same data,
  /// exactly where it stood; on another number of ranks where a step takes as many samples, else refused. Once it has
  /// come to its end, a further train() trains on from where the model stands then.
  std::optional<std::filesystem::path> resume_from_checkpoint{};
  /// The weights of the best evaluation are kept in output_dir/best_model, and are the model's when train() ends.
  bool load_best_model_at_end = false;

  /// What evaluations are compared by, with or without "eval_". Unset: the loss.
  std::optional<std::string> metric_for_best_model{};
  /// Unset: greater is better for all but what ends in "loss".
  std::optional<bool> greater_is_better{};
  /// Keys of a batch that compute_metrics and predict() give beside the predictions.
  std::vector<std::string> label_names{"labels"};

  /// Of the order of the data, of dropout (rank r: seed + r) and of all else that is random from the Trainer's
  /// construction on. The model is there already: seed before it is made, as set_seed() does.
  uint64_t seed = 42;
  /// Of the order of the data alone. Unset: seed.
  std::optional<uint64_t> data_seed{};

  /// Threads that read ahead, of each rank; 0: batches are read when they are due.
  int64_t dataloader_num_workers = 0;
  /// Batches per worker that are read and not yet taken. Unset: 2.
  std::optional<int64_t> dataloader_prefetch_factor{};
  bool dataloader_pin_memory = true;
  /// Leaves out the last training samples where they do not fill a batch on every rank. Evaluation leaves out none.
  bool dataloader_drop_last = false;

  /// Who keeps what is logged: "tensorboard", "csv", "jsonl", "all" of these. One's own are given as
  /// TrainerParts::accelerator.log_with. Without any, and without the word "none" here, logging_dir and run_name are
  /// refused: transformers would report.
  std::vector<std::string> report_to{};
  /// Folder of the files that they write. Unset: output_dir/runs.
  std::optional<std::filesystem::path> logging_dir{};
  /// The folder in it that is this run's. Unset: "train".
  std::optional<std::string> run_name{};
  /// Shows no progress bar.
  bool disable_tqdm = false;
  /// false: train() and evaluations outside of it also measure this rank's memory, in bytes: train_mem_cpu_alloc_delta,
  /// train_mem_cpu_peaked_delta, and "gpu" of an accelerator; Accelerator::memory()'s peaks then begin anew with them.
  bool skip_memory_metrics = true;
};

/// What else an argument may contradict.
struct ArgumentsContext {
  bool has_eval_dataset = false;
  bool has_own_trackers = false;  ///< of TrainerParts::accelerator
  Place place{};
};

/// Throws Error (usage) for a value out of its range and for arguments that contradict one another.
void check(const TrainingArguments& arguments, const ArgumentsContext& context);

/// report_to without "none".
[[nodiscard]] std::vector<std::string> trackers_of(const TrainingArguments& arguments);

/// The metric that evaluations are compared by: "eval_loss".
[[nodiscard]] std::string best_metric_name(const TrainingArguments& arguments);
[[nodiscard]] bool greater_is_better(const TrainingArguments& arguments);

}  // namespace accelerate::trainer
