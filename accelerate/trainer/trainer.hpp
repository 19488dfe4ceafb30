// SPDX-License-Identifier: Apache-2.0
// A complete training loop with transformers' names. It has its own header, because programs with their own loop do not
// need it.
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "accelerate/accelerate.hpp"
#include "accelerate/trainer/best_model.hpp"
#include "accelerate/trainer/early_stopping.hpp"
#include "accelerate/trainer/printer.hpp"
#include "accelerate/trainer/progress.hpp"
#include "accelerate/trainer/report.hpp"
#include "accelerate/trainer/trainer_base.hpp"

namespace accelerate {

using trainer::BestModelCallback;
using trainer::EarlyStoppingCallback;
using trainer::EvalPrediction;
using trainer::Inputs;
using trainer::IntervalStrategy;
using trainer::LossAndOutputs;
using trainer::Metrics;
using trainer::PredictionOutput;
using trainer::PrinterCallback;
using trainer::ProgressCallback;
using trainer::ReportCallback;
using trainer::SchedulerType;
using trainer::TrainerCallback;
using trainer::TrainerContext;
using trainer::TrainerControl;
using trainer::TrainerParts;
using trainer::TrainerState;
using trainer::TrainingArguments;
using trainer::TrainOutput;

/// Trains, evaluates and predicts with one model on all ranks. A program derives from it and defines the loss:
///
///   struct DigitTrainer : accelerate::Trainer<BasicNet> {
///     using Trainer::Trainer;
///     LossAndOutputs compute_loss(Model& model, const Inputs& inputs) override {
///       const auto outputs = model(inputs["x"]);
///       return {torch::nll_loss(outputs, inputs["labels"]), outputs};
///     }
///   };
///
/// Not thread-safe. train() calls the functions of TrainerParts and the callbacks on its thread.
///
/// \tparam AnyModule  A module holder (TORCH_MODULE), a torch::jit::Module, or a module class (passed as
///         std::shared_ptr).
template <typename AnyModule>
class Trainer : public trainer::TrainerBase {
 public:
  using Handle =
      std::conditional_t<std::derived_from<AnyModule, torch::nn::Module>, std::shared_ptr<AnyModule>, AnyModule>;
  using Inputs = trainer::Inputs;
  using LossAndOutputs = trainer::LossAndOutputs;
  /// Type of the prepared model, as returned by Accelerator::prepare().
  using Model = decltype(std::declval<Accelerator&>().prepare(std::declval<Handle&>()));

  /// \throws Error (usage) if an argument is out of range or arguments contradict one another.
  Trainer(Handle model, TrainingArguments arguments, TrainerParts parts = {})
      : TrainerBase(std::move(arguments), std::move(parts)), handle_(std::move(model)) {}

  /// The prepared model. The first call prepares it.
  [[nodiscard]] Model& model() {
    if (!model_) model_.emplace(accelerator().prepare(handle_));
    return *model_;
  }
  [[nodiscard]] std::vector<at::Tensor> parameters() override {
    auto list = model().parameters();
    std::erase_if(list, [](const at::Tensor& parameter) { return !parameter.requires_grad(); });
    return list;
  }
  [[nodiscard]] torch::OrderedDict<std::string, at::Tensor> state_dict() override {
    return accelerator().get_state_dict(model());
  }
  void set_state(const std::vector<std::pair<std::string, at::Tensor>>& values) override {
    const at::NoGradGuard no_grad;
    const auto whole = Accelerator::summon_full_params(model());
    torch::OrderedDict<std::string, at::Tensor> own;
    for (const auto* tensors : {&model().core().parameters(), &model().core().buffers()}) {
      for (const auto& [name, tensor] : *tensors) own.insert(name, tensor.detach());
    }
    for (const auto& [name, value] : values) own[name].copy_(value);
  }

 protected:
  /// Computes the loss of a batch, and the outputs if metrics or predictions need them. Used in training and
  /// evaluation.
  virtual LossAndOutputs compute_loss(Model& model, const Inputs& inputs) = 0;
  /// Runs forward and backward of one micro-batch.
  /// \returns the loss for the log.
  virtual at::Tensor training_step(Model& model, const Inputs& inputs) {
    const auto [loss, outputs] = compute_loss(model, inputs);
    accelerator().backward(loss);
    return loss.detach();
  }
  /// Computes one batch of evaluate() or predict() without gradients. Override it for batches without labels: an
  /// undefined loss is skipped.
  virtual LossAndOutputs prediction_step(Model& model, const Inputs& inputs) { return compute_loss(model, inputs); }

 private:
  // Assigns to the existing object, so that references from model() stay valid.
  void prepare_model() override {
    if (!model_ || !trains()) model_ = accelerator().prepare(handle_);
  }
  at::Tensor train_on(const Inputs& inputs) override { return training_step(model(), inputs); }
  LossAndOutputs predict_on(const Inputs& inputs) override { return prediction_step(model(), inputs); }
  bool set_training(bool on) override {
    const bool before = model()->is_training();
    model()->train(on);
    return before;
  }
  std::function<void()> kept_modes() override {
    if constexpr (std::same_as<AnyModule, torch::jit::Module>) {
      return kept_modes_of(
          model()->modules(), [](auto& layer) -> auto& { return layer; });
    } else {
      return kept_modes_of(
          model()->modules(/*include_self=*/false), [](auto& layer) -> auto& { return *layer; });
    }
  }
  // Parents precede their own layers, because train() on a parent also sets their mode.
  template <typename Layers, typename ModuleOf>
  static std::function<void()> kept_modes_of(const Layers& layers, const ModuleOf& module_of) {
    std::vector<std::pair<std::decay_t<decltype(*layers.begin())>, bool>> modes;
    for (auto layer : layers) modes.emplace_back(layer, module_of(layer).is_training());
    return [modes, module_of] {
      for (auto [layer, training] : modes) module_of(layer).train(training);
    };
  }

  void save_weights(const std::filesystem::path& folder) override { accelerator().save_model(model(), folder); }
  void load_weights(const std::filesystem::path& folder) override {
    static_cast<void>(accelerator().load_model(model(), folder));
  }

  Handle handle_;
  std::optional<Model> model_;
};

}  // namespace accelerate
