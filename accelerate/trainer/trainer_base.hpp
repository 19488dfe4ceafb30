// SPDX-License-Identifier: Apache-2.0
// What a Trainer is whatever its model is: training, evaluation, callbacks.
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

/// What compute_loss gives.
struct LossAndOutputs {
  at::Tensor loss;       ///< scalar, the mean over the batch
  at::Tensor outputs{};  ///< [B, ...], what compute_metrics and predict() see; undefined: nothing
};

/// What compute_metrics is given, and predict() gives: of all examples, on the CPU, each once and in order.
struct EvalPrediction {
  at::Tensor predictions;  ///< [N, ...]; where second dimensions differed, filled with -100
  Inputs label_ids;        ///< label_names' parts of the batches, [N, ...]
};

struct PredictionOutput {
  at::Tensor predictions;
  Inputs label_ids;
  Metrics metrics;
};

struct TrainOutput {
  int64_t global_step = 0;
  /// Mean over the steps of this train() and all ranks; the loss of a step is the mean of its micro-batches.
  double training_loss = 0;
  Metrics metrics{};
};

/// Examples that come as dictionary batches. Of a user's data set and a collate function it is made by
/// data::dataset_source(dataset, collate), of another source by data::map(source, to_inputs).
using Dataset = data::SourcePtr<Inputs>;

/// What a Trainer works with, beside model and arguments.
struct TrainerParts {
  Dataset train_dataset{};
  Dataset eval_dataset{};
  /// Metrics of an evaluation; called on every rank with the same values. "eval_" is put before names without it.
  std::function<Metrics(const EvalPrediction&)> compute_metrics{};
  std::vector<std::shared_ptr<TrainerCallback>> callbacks{};
  /// What the Trainer's Accelerator is told beyond the arguments.
  AcceleratorOptions accelerator{};
};

class TrainerBase {
 public:
  /// Throws Error (usage) for arguments that contradict one another.
  TrainerBase(TrainingArguments arguments, TrainerParts parts);
  TrainerBase(const TrainerBase&) = delete;
  TrainerBase& operator=(const TrainerBase&) = delete;
  virtual ~TrainerBase();

  /// Trains from where the model stands, with a new optimizer and schedule and no gradients; where
  /// arguments().resume_from_checkpoint is given, from there, until a train() has come to its end: one after it trains
  /// on, one after a failure resumes. Collective, as all below. Throws Error (usage) without a training set, and from
  /// within a train().
  TrainOutput train();
  /// dataset   null: eval_dataset
  /// prefix    of the metrics' names: {prefix}_loss, compute_metrics' own, {prefix}_runtime,
  ///           {prefix}_samples_per_second and {prefix}_steps_per_second
  Metrics evaluate(const Dataset& dataset = nullptr, const std::string& prefix = "eval");
  PredictionOutput predict(const Dataset& dataset, const std::string& prefix = "test");

  /// The model's weights as safetensors. folder   empty: output_dir
  void save_model(const std::filesystem::path& folder = {});

  /// Called after those that are there, but before the one that prints.
  void add_callback(std::shared_ptr<TrainerCallback> callback);
  /// Takes away all callbacks of that type.
  template <typename Callback>
  void remove_callback() {
    std::erase_if(callbacks_, [](const auto& one) { return dynamic_cast<const Callback*>(one.get()) != nullptr; });
  }

  [[nodiscard]] Accelerator& accelerator() { return accelerator_; }
  [[nodiscard]] const TrainingArguments& arguments() const { return arguments_; }
  [[nodiscard]] const TrainerState& state() const { return state_; }
  /// Of the latest train(). Throws Error (usage) before it.
  [[nodiscard]] const TrainingPlan& plan() const;
  /// The model's trainable parameters.
  [[nodiscard]] virtual std::vector<at::Tensor> parameters() = 0;
  /// The model's parameters and buffers by name, without gradients: no copies.
  [[nodiscard]] virtual torch::OrderedDict<std::string, at::Tensor> state_dict() = 0;

  /// Adds them to the history, with epoch and step, and tells the callbacks. Not collective.
  virtual void log(Metrics logs);

 protected:
  /// Called at the start of train(), when the model is on its device. AdamW.
  [[nodiscard]] virtual std::shared_ptr<torch::optim::Optimizer> create_optimizer();
  /// lr_scheduler_type. Its steps are optimizer steps of the whole job.
  [[nodiscard]] virtual std::shared_ptr<optim::Scheduler> create_scheduler(torch::optim::Optimizer& optimizer,
                                                                           int64_t num_training_steps);
  [[nodiscard]] virtual data::LoaderOf<Inputs> get_train_dataloader();
  [[nodiscard]] virtual data::LoaderOf<Inputs> get_eval_dataloader(const Dataset& dataset);
  /// The steps of a train() are being made.
  [[nodiscard]] bool trains() const { return training_; }

 private:
  class Run;
  class NowTraining;
  class EvaluationMode;
  struct SavedPart;
  struct SavedCallbacks;
  struct Evaluated;
  /// What an evaluation keeps of each batch: its losses; outputs and labels too; those that there are.
  enum class Keep { losses, labelled, outputs };

  // The model's side, which knows its type.
  /// Before a training, and before an evaluation outside one: it may have been forgotten since (free_memory()), or
  /// frozen.
  virtual void prepare_model() = 0;
  virtual at::Tensor train_on(const Inputs& inputs) = 0;
  virtual LossAndOutputs predict_on(const Inputs& inputs) = 0;
  /// returns   what it was before
  virtual bool set_training(bool on) = 0;
  /// returns   puts each layer back into the mode that it has now
  virtual std::function<void()> kept_modes() = 0;

  virtual void save_weights(const std::filesystem::path& folder) = 0;
  virtual void load_weights(const std::filesystem::path& folder) = 0;

  void register_state();
  void check_output_dir() const;
  void resume();
  void remind_callbacks();
  void save_checkpoint();
  void keep_best();
  void put_best_into(const std::filesystem::path& checkpoint) const;
  void take_best_from(const std::filesystem::path& checkpoint);
  void share_best() const;
  void bring_best_back();
  void fire(Event event, const Metrics& metrics = {}, bool for_best = false);
  /// Finds whether any rank has callbacks that may wish for different things. Collective.
  void meet_callbacks();
  /// Every rank's wishes become all ranks', where callbacks may wish for different things.
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
  bool all_decide_alike_ = true;  ///< every rank's callbacks, when the training began
  bool training_ = false;
  bool has_saved_ = false;
  bool has_trained_ = false;  ///< a train() came to its end
  /// The latest train(): its optimizer and schedule can be saved until the next one's take their place.
  std::shared_ptr<Run> run_;
};

}  // namespace accelerate::trainer
