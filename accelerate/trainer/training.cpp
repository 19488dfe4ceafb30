// SPDX-License-Identifier: Apache-2.0
// The loop of TrainerBase::train().
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <unordered_set>
#include <utility>

#include "accelerate/trainer/loss_sum.hpp"
#include "accelerate/trainer/memory_delta.hpp"
#include "accelerate/trainer/trainer_base.hpp"

namespace accelerate::trainer {
namespace {

constexpr double kMeasureOnly = std::numeric_limits<double>::infinity();  // max_norm that only measures

/// Dereferences the result of an override.
/// \throws Error (usage) if it is null.
template <typename Made>
Made& created_by_override(const std::shared_ptr<Made>& made, std::string_view operation, const RankContext& place) {
  if (made == nullptr)
    base::fail(ErrorKind::usage, place, operation, "it returned a null pointer, must return an object");
  return *made;
}

}  // namespace

/// Marks a training as running during the lifetime of this object.
class TrainerBase::NowTraining {
 public:
  explicit NowTraining(bool& training) : training_(training) { training_ = true; }
  NowTraining(const NowTraining&) = delete;
  NowTraining& operator=(const NowTraining&) = delete;
  ~NowTraining() { training_ = false; }

 private:
  bool& training_;
};

/// One call of train().
class TrainerBase::Run {
 public:
  explicit Run(TrainerBase& trainer)
      : trainer_(trainer),
        accelerator_(trainer.accelerator_),
        loader_(trainer.accelerator_.prepare(trainer.get_train_dataloader())),
        optimizer_(prepared_optimizer()),
        scheduler_(prepared_scheduler()) {}
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  TrainOutput go() {
    const NowTraining training(trainer_.training_);
    if (!trainer_.arguments_.skip_memory_metrics) memory_.emplace(accelerator_);
    begin();
    while (!is_over() && !control().should_training_stop) one_epoch();
    save_last();
    return end();
  }

 private:
  [[nodiscard]] TrainerState& state() const { return trainer_.state_; }
  [[nodiscard]] TrainerControl& control() const { return trainer_.control_; }
  [[nodiscard]] const TrainingPlan& plan() const { return *trainer_.plan_; }

  // Prepared by reference: the Accelerator forgets a referenced object together with its handle, so a later train()
  // does not find this one's objects.
  PreparedOptimizer<torch::optim::Optimizer> prepared_optimizer() {
    trainer_.prepare_model();
    made_optimizer_ = trainer_.create_optimizer();
    return accelerator_.prepare(created_by_override(made_optimizer_, "create_optimizer", accelerator_.place()));
  }

  PreparedScheduler<optim::Scheduler> prepared_scheduler() {
    int64_t trainable = 0;
    std::unordered_set<const void*> stepped;
    for (const auto& group : made_optimizer_->param_groups()) {
      for (const auto& parameter : group.params()) stepped.insert(parameter.unsafeGetTensorImpl());
    }
    for (auto& parameter : trainer_.parameters()) {
      trainable += parameter.numel();
      (stepped.contains(parameter.unsafeGetTensorImpl()) ? parameters_ : not_stepped_).push_back(parameter);
    }
    trainer_.plan_ = plan_training(trainer_.arguments_,
                                   {.examples = loader_->sample_count(),
                                    .batches = loader_.size(),
                                    .batch_of_all_ranks = loader_.total_batch_size(),
                                    .gradient_accumulation_steps = accelerator_.gradient_accumulation_steps(),
                                    .trainable_parameters = trainable},
                                   accelerator_.place());
    made_scheduler_ = trainer_.create_scheduler(*optimizer_, plan().max_steps);
    return accelerator_.prepare(created_by_override(made_scheduler_, "create_scheduler", accelerator_.place()));
  }

  void begin() {
    const auto& arguments = trainer_.arguments_;
    const auto before = std::exchange(state(), {.max_steps = plan().max_steps,
                                                .num_train_epochs = plan().num_train_epochs,
                                                .total_train_batch_size = plan().total_batch_size(),
                                                .logging_steps = arguments.logging_steps,
                                                .eval_steps = arguments.eval_steps.value_or(arguments.logging_steps)});
    state().is_local_process_zero = before.is_local_process_zero;
    state().is_world_process_zero = before.is_world_process_zero;
    control() = {};
    trainer_.check_output_dir();
    accelerator_.drop_gradients();  // from earlier use, or a train() that threw within a window
    trainer_.resume();
    epochs_ = static_cast<int64_t>(state().epoch + 1e-9);
    logged_at_ = state().global_step;
    steps_before_ = state().global_step;
    trainer_.set_training(true);
    began_ = Clock::now();
    trainer_.fire(&TrainerCallback::on_train_begin);
    trainer_.restore_callback_state();
    trainer_.check_same_callbacks();
    trainer_.agree();
  }

  /// If callbacks end epochs early, training makes fewer steps than planned. Then num_train_epochs determines the end.
  [[nodiscard]] bool is_over() const {
    const bool by_epochs = trainer_.arguments_.max_steps <= 0;
    return state().global_step >= plan().max_steps || (by_epochs && epochs_ >= plan().num_train_epochs);
  }

  void one_epoch() {
    control().should_epoch_stop = false;
    trainer_.fire(&TrainerCallback::on_epoch_begin);
    // A resumed epoch starts after its completed batches.
    const double done = (state().epoch - static_cast<double>(epochs_)) * static_cast<double>(plan().size.batches);
    int64_t batches = std::llround(done);
    const int64_t epoch_began_at = samples_ - batches * plan().size.batch_of_all_ranks;
    bool opens = true;
    for (const Inputs& inputs : loader_) {
      if (opens) trainer_.fire(&TrainerCallback::on_step_begin);
      opens = micro_batch(inputs);
      ++batches;
      samples_ = epoch_began_at + std::min(batches * plan().size.batch_of_all_ranks, plan().size.examples);
      // After a resume with another world size, an epoch can have a different number of batches left.
      const double part =
          loader_.info().last ? 1 : static_cast<double>(batches) / static_cast<double>(plan().size.batches);
      state().epoch = static_cast<double>(epochs_) + part;
      if (!opens) {
        trainer_.fire(&TrainerCallback::on_substep_end);
        continue;
      }
      ++state().global_step;
      trainer_.fire(&TrainerCallback::on_step_end);
      run_due_actions(loader_.info().last ? After::last_step : After::step);
      if (control().should_epoch_stop || control().should_training_stop) break;
    }
    ++epochs_;
    if (control().should_epoch_stop) leave_epoch();
    trainer_.fire(&TrainerCallback::on_epoch_end);
    run_due_actions(After::epoch);
  }

  /// An epoch that ended early counts as complete, so that a training resumed here also begins the next epoch.
  void leave_epoch() {
    state().epoch = static_cast<double>(epochs_);
    const auto place = loader_.state();
    if (place.consumed > 0) loader_.set_epoch(place.epoch + 1);
  }

  /// \returns true if the micro-batch ended in an optimizer step.
  bool micro_batch(const Inputs& inputs) {
    const auto window = accelerator_.accumulate();
    in_step_.add(using_inputs_at(accelerator_.place(), [&] { return trainer_.train_on(inputs); }));
    if (!accelerator_.sync_gradients()) return false;
    since_log_.add_mean_of(std::exchange(in_step_, {}));
    const double max_norm = trainer_.arguments_.max_grad_norm;
    gradient_norm_ = accelerator_.clip_grad_norm_(parameters_, max_norm > 0 ? max_norm : kMeasureOnly);
    trainer_.fire(&TrainerCallback::on_pre_optimizer_step);
    optimizer_.step();
    trainer_.fire(&TrainerCallback::on_optimizer_step);
    // Reads the schedule directly: optimizer_.step() has made its pending steps, so no flag of the device is awaited.
    learning_rate_ = scheduler_.unwrap()->get_last_lr().front();
    scheduler_.step();
    optimizer_.zero_grad();
    for (const at::Tensor& parameter : not_stepped_) parameter.mutable_grad().reset();
    return true;
  }

  enum class After { step, last_step, epoch };

  void run_due_actions(After what) {
    trainer_.agree();
    const bool log = std::exchange(control().should_log, false);
    const bool evaluate = std::exchange(control().should_evaluate, false);
    if (log && state().global_step > logged_at_) log_now();
    if (evaluate) static_cast<void>(trainer_.evaluate());
    if (log || evaluate) trainer_.agree();  // their events may request an end, which a checkpoint must record
    // If the epoch or the training ends here, the checkpoint is saved after the events of that end, because a resumed
    // training does not repeat them. They may evaluate or stop the training.
    const bool ends = what == After::last_step || control().should_epoch_stop || control().should_training_stop;
    if (!control().should_save || (what != After::epoch && ends)) return;
    control().should_save = false;
    save_now();
  }

  void save_now() {
    saved_at_ = state().global_step;
    trainer_.save_checkpoint();
    trainer_.agree();
  }

  /// Saves the last step if a callback ended training between two saves.
  void save_last() {
    const bool ended = control().should_training_stop && state().global_step > std::max(saved_at_, steps_before_);
    if (ended && trainer_.arguments_.save_strategy == IntervalStrategy::steps) save_now();
  }

  void log_now() {
    logged_at_ = state().global_step;
    Metrics logs{{"loss", since_log_.mean(accelerator_)},
                 {"learning_rate", learning_rate_},
                 {"grad_norm", gradient_norm_.item<double>()}};
    total_.add(std::exchange(since_log_, {}));
    trainer_.log(std::move(logs));
  }

  TrainOutput end() {
    total_.add(std::exchange(since_log_, {}));
    TrainOutput output{.global_step = state().global_step, .training_loss = total_.mean(accelerator_)};
    const std::chrono::duration<double> seconds = Clock::now() - began_;
    output.metrics = speed_metrics("train", seconds.count(), samples_, state().global_step - steps_before_);
    output.metrics["train_loss"] = output.training_loss;
    if (memory_) output.metrics.merge(memory_->metrics("train"));
    trainer_.restore_best_model();
    trainer_.log(output.metrics);
    trainer_.fire(&TrainerCallback::on_train_end);
    output.metrics["epoch"] = state().epoch;
    return output;
  }

  using Clock = std::chrono::steady_clock;

  TrainerBase& trainer_;
  Accelerator& accelerator_;
  std::vector<at::Tensor> parameters_, not_stepped_;  // trainable parameters: in the optimizer, and others
  PreparedLoader<data::LoaderOf<Inputs>> loader_;
  std::shared_ptr<torch::optim::Optimizer> made_optimizer_;
  std::shared_ptr<optim::Scheduler> made_scheduler_;
  PreparedOptimizer<torch::optim::Optimizer> optimizer_;
  PreparedScheduler<optim::Scheduler> scheduler_;
  LossSum in_step_, since_log_, total_;  // of micro-batches; of steps; of steps
  at::Tensor gradient_norm_;             // of the latest step, before clipping
  double learning_rate_ = 0;             // of the latest step
  Clock::time_point began_{};
  std::optional<MemoryDelta> memory_;
  int64_t epochs_ = 0;
  int64_t samples_ = 0;
  int64_t logged_at_ = 0;
  int64_t steps_before_ = 0;
  int64_t saved_at_ = 0;
};

TrainOutput TrainerBase::train() {
  if (training_) {
    base::fail(ErrorKind::usage, accelerator_.place(), "train", "this Trainer trains already; wait for that train()");
  }
  run_.reset();  // before the next optimizer and schedule are created
  run_ = std::make_shared<Run>(*this);
  auto output = run_->go();
  has_trained_ = true;
  return output;
}

}  // namespace accelerate::trainer
