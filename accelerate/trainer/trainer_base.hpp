// SPDX-License-Identifier: Apache-2.0
// The part of a Trainer that does not depend on the model's type: training, evaluation, callbacks.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/accelerator.hpp"
#include "accelerate/trainer/callback.hpp"
#include "accelerate/trainer/inputs.hpp"
#include "accelerate/trainer/plan.hpp"

namespace accelerate::trainer {

/// Result of compute_loss().
struct LossAndOutputs {
  at::Tensor loss;       ///< scalar, the mean over the batch
  at::Tensor outputs{};  ///< [B, ...], for compute_metrics and predict(); undefined without them
};

/// Results for all examples on the CPU, each example once and in order. Argument of compute_metrics.
struct EvalPrediction {
  at::Tensor predictions;  ///< [N, ...]; shorter second dimensions are padded with -100
  Inputs label_ids;        ///< the batches' entries for label_names, [N, ...]
};

struct PredictionOutput {
  at::Tensor predictions;
  Inputs label_ids;
  Metrics metrics;
};

struct TrainOutput {
  int64_t global_step = 0;
  /// Mean over the steps of this train() and over all ranks. The loss of a step is the mean of its micro-batches.
  double training_loss = 0;
  Metrics metrics{};
};

/// Examples in dictionary batches: data::dataset_source(dataset, collate) for a user-defined data set and a collate
/// function, or data::map(source, to_inputs) for another source.
using Dataset = data::SourcePtr<Inputs>;

/// Objects for a Trainer, besides model and arguments.
struct TrainerParts {
  Dataset train_dataset{};
  Dataset eval_dataset{};
  /// Computes the metrics of an evaluation; called on every rank with the same values. Names without the evaluation's
  /// prefix ("eval_") get it.
  std::function<Metrics(const EvalPrediction&)> compute_metrics{};
  std::vector<std::shared_ptr<TrainerCallback>> callbacks{};
  /// Options of the Trainer's Accelerator, in addition to the arguments.
  AcceleratorOptions accelerator{};
};

/// Base class of Trainer without its template parameter. Not thread-safe: all functions are called on the thread that
/// created it.
class TrainerBase {
 public:
  /// \throws Error (usage) if an argument is out of range or arguments contradict one another.
  TrainerBase(TrainingArguments arguments, TrainerParts parts);
  TrainerBase(const TrainerBase&) = delete;
  TrainerBase& operator=(const TrainerBase&) = delete;
  virtual ~TrainerBase();

  /// Trains from the current weights with a new optimizer and schedule and without gradients. If
  /// arguments().resume_from_checkpoint is set, every train() continues from that checkpoint until one has completed;
  /// later calls train from the current weights. Collective, like evaluate(), predict() and save_model().
  /// \throws Error (usage) if no training set is given or a train() is already running.
  TrainOutput train();
  /// \param dataset  If null, eval_dataset is used.
  /// \param prefix  Prefix of the metrics' names: {prefix}_loss, the metrics of compute_metrics, {prefix}_runtime,
  ///         {prefix}_samples_per_second and {prefix}_steps_per_second.
  Metrics evaluate(const Dataset& dataset = nullptr, const std::string& prefix = "eval");
  PredictionOutput predict(const Dataset& dataset, const std::string& prefix = "test");

  /// Saves the model's weights as safetensors.
  /// \param folder  If empty, output_dir is used.
  void save_model(const std::filesystem::path& folder = {});

  /// Appends a callback, but before a PrinterCallback that is last.
  void add_callback(std::shared_ptr<TrainerCallback> callback);
  /// Removes all callbacks of that type.
  template <typename Callback>
  void remove_callback() {
    std::erase_if(callbacks_, [](const auto& one) { return dynamic_cast<const Callback*>(one.get()) != nullptr; });
  }

  [[nodiscard]] Accelerator& accelerator() { return accelerator_; }
  [[nodiscard]] const TrainingArguments& arguments() const { return arguments_; }
  [[nodiscard]] const TrainerState& state() const { return state_; }
  /// The plan of the latest train().
  /// \throws Error (usage) before the first one.
  [[nodiscard]] const TrainingPlan& plan() const;
  /// The model's trainable parameters.
  [[nodiscard]] virtual std::vector<at::Tensor> parameters() = 0;
  /// The model's parameters and buffers by name, detached. With full_shard rank 0 has copies, and the other ranks have
  /// nothing. Collective with sharding.
  [[nodiscard]] virtual torch::OrderedDict<std::string, at::Tensor> state_dict() = 0;
  /// Copies values into the model's parameters and buffers of these names. Collective with sharding.
  virtual void set_state(const std::vector<std::pair<std::string, at::Tensor>>& values) = 0;

  /// Adds metrics to the history, with epoch and step, and calls on_log of the callbacks. Not collective.
  virtual void log(Metrics logs);

 protected:
  /// Creates the optimizer at the start of train(), when the model is on its device. The default is AdamW.
  [[nodiscard]] virtual std::shared_ptr<torch::optim::Optimizer> create_optimizer();
  /// Creates the schedule, by default of lr_scheduler_type. Its steps are optimizer steps of the whole job.
  [[nodiscard]] virtual std::shared_ptr<optim::Scheduler> create_scheduler(torch::optim::Optimizer& optimizer,
                                                                           int64_t num_training_steps);
  [[nodiscard]] virtual data::LoaderOf<Inputs> get_train_dataloader();
  [[nodiscard]] virtual data::LoaderOf<Inputs> get_eval_dataloader(const Dataset& dataset);
  /// True while train() runs its loop.
  [[nodiscard]] bool trains() const { return training_; }

 private:
  class Run;
  class NowTraining;
  class EvaluationMode;
  struct SavedPart;
  struct SavedCallbacks;
  struct Evaluated;
  /// Results that an evaluation keeps of each batch: losses; also outputs and all labels; also outputs and available
  /// labels.
  enum class Keep { losses, labelled, outputs };

  // Implemented by Trainer, which knows the model's type.
  /// Called before a training, and before an evaluation outside one. Meanwhile the program may have called
  /// free_memory() or frozen parameters.
  virtual void prepare_model() = 0;
  virtual at::Tensor train_on(const Inputs& inputs) = 0;
  virtual LossAndOutputs predict_on(const Inputs& inputs) = 0;
  /// \returns the previous mode.
  virtual bool set_training(bool on) = 0;
  /// \returns a function that restores each layer's current mode.
  virtual std::function<void()> kept_modes() = 0;

  virtual void save_weights(const std::filesystem::path& folder) = 0;
  virtual void load_weights(const std::filesystem::path& folder) = 0;

  void register_state();
  void check_output_dir() const;
  void resume();
  void restore_callback_state();
  void save_checkpoint();
  void keep_best();
  void load_best_weights(const std::filesystem::path& checkpoint) const;
  void copy_best_weights(const std::filesystem::path& checkpoint);
  void share_best() const;
  void restore_best_model();
  void fire(Event event, const Metrics& metrics = {}, bool for_best = false);
  /// Determines whether the callbacks of any rank may make different requests. Collective.
  void check_same_callbacks();
  /// Combines the requests of all ranks if callbacks may make different ones. Collective.
  void agree();
  Evaluated run_evaluation(const Dataset& dataset, const std::string& prefix, Keep keep);
  std::vector<at::Tensor> gathered_step(const Inputs& inputs, int64_t real, Keep keep,
                                        const std::vector<std::string>& labels);
  [[nodiscard]] std::vector<std::string> labels_of(const Inputs& inputs, bool all) const;
  void decide_by_rank_0(Metrics& metrics) const;
  void note_best(const Metrics& metrics);

  TrainingArguments arguments_;
  TrainerParts parts_;
  Accelerator accelerator_;
  std::vector<std::shared_ptr<TrainerCallback>> callbacks_;
  TrainerState state_;
  TrainerControl control_;
  std::optional<TrainingPlan> plan_;
  std::shared_ptr<SavedPart> saved_part_;
  std::shared_ptr<SavedCallbacks> saved_callbacks_;
  bool callbacks_agree_ = true;  ///< on every rank, at the start of training
  bool training_ = false;
  bool has_saved_ = false;
  bool has_trained_ = false;  ///< a train() has completed
  /// The latest train(). Its optimizer and schedule can be saved until the next train() replaces them.
  std::shared_ptr<Run> run_;
};

}  // namespace accelerate::trainer
