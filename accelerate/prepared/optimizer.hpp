// SPDX-License-Identifier: Apache-2.0
// The prepared form of an optimizer: it steps at the end of an accumulation window, with a fused kernel if one exists.
#pragma once

#include <torch/optim/optimizer.h>

#include <concepts>
#include <memory>
#include <optional>
#include <typeinfo>
#include <unordered_set>
#include <utility>
#include <vector>

#include "accelerate/optim/fused_step.hpp"
#include "accelerate/optim/state_ranges.hpp"
#include "accelerate/prepared/accelerator_state.hpp"
#include "accelerate/prepared/handle.hpp"
#include "accelerate/prepared/scaled_gradients.hpp"
#include "accelerate/state/parameter_shard.hpp"

namespace accelerate::gradient {
class GradientReducer;
}

namespace accelerate::sharding {
class FullyShardedParameters;
class ParameterSharding;
}  // namespace accelerate::sharding

namespace accelerate::prepared {

class ModelCore;

class OptimizerCore : public Entry {
 public:
  static constexpr Kind kEntryKind = Kind::optimizer;
  OptimizerCore(AcceleratorState& shared, torch::optim::Optimizer& optimizer);

  /// Does nothing within an accumulation window. Otherwise it makes one update, which is fused for the stock optimizers
  /// that FusedStep recognises.
  ///
  /// An optimizer that calls its closure itself (LBFGS) gets the mean of the ranks' losses, so that all ranks make
  /// the same decisions. Each rank then calls the closure equally often, and closures must return a mean over the
  /// rank's samples. Within local SGD and a join of uneven inputs, the optimizer gets the loss of its own rank.
  ///
  /// With loss scaling the gradients are unscaled first, and the update is skipped if a gradient is inf or NaN. The
  /// fused step reads that flag on the device; before an optimizer's own step the host waits for it.
  ///
  /// \throws Error (usage) if a gradient of this rank was never reduced over the ranks (checked after each call of a
  ///   closure), if a parameter is listed twice, or if no parameter has a gradient and none belongs to a prepared
  ///   model.
  /// \throws Error (usage) if the optimizer calls its closure itself, with loss scaling or master weights.
  /// \throws Error (usage) with sharding, if a gradient is sparse or a parameter changed its dtype, shape or layout.
  /// \note With sharding, the step is collective.
  /// \throws Error (data) if the loss scale is at its minimum.
  at::Tensor step(const torch::optim::Optimizer::LossClosure& closure);

  /// Takes effect once after every step. Otherwise it does nothing within an accumulation window, until a backward of
  /// the last micro-batch reaches this optimizer's parameters. The call may therefore be the first or the last one in
  /// the loop, or between the backwards of two losses.
  void zero_grad(bool set_to_none);

  /// Must be called when the micro-batch that ends a window of several begins. The gradients belong to the earlier
  /// micro-batches until a backward of this one reaches them.
  void begin_final_micro_batch() { reached_ = false; }
  /// begin_backward() and backward_done() enclose the autograd graph of a backward in the last micro-batch. The
  /// gradient reducers must reduce pending gradients after backward_done(), because the reduction changes gradients,
  /// too.
  void begin_backward() { waiting_ = write_stamp_of_gradients(); }
  void backward_done() { reached_ = reached_ || write_stamp_of_gradients() != waiting_; }

  /// Drops the gradients at any point of a window, so that loaded parameters are not stepped on with old gradients.
  void drop_gradients(bool set_to_none = true);

  [[nodiscard]] torch::optim::Optimizer& optimizer() const { return optimizer_; }
  /// Returns whether the last due step was skipped because of inf or NaN. Waits for the device.
  [[nodiscard]] bool step_was_skipped();
  /// Returns a float32 scalar on the device, 1 if the last due step was skipped. The host does not wait. Unset without
  /// loss scaling, and before the first due step.
  [[nodiscard]] std::optional<at::Tensor> skip_flag() const;
  /// Subtracts skipped steps from the counts in the optimizer state. Must be called before the state is read. Waits for
  /// the device if steps may have been skipped on it.
  void discard_skipped_steps();
  /// Runs the deferred schedule steps. Must be called before rates are read or set. Waits for the last step's flag if a
  /// schedule depends on it.
  void run_deferred_schedules();

  /// With sharding, keeps only this rank's ranges of the state, also of state that was created or loaded as a whole.
  /// \returns true if a part of the parameters is sharded.
  bool keep_state_ranges();
  /// Returns the range of the parameter for which this rank keeps state. Unset for a parameter that is not sharded.
  [[nodiscard]] std::optional<optim::StateRange> state_range_of(const at::Tensor& parameter) const;
  /// Returns the division of the model's parameters that contains the parameter, or null.
  [[nodiscard]] const sharding::ParameterSharding* sharding_of(const at::Tensor& parameter) const;

  /// Returns true if each rank has only a part of some gradients.
  [[nodiscard]] bool has_sharded_gradients() const { return !fully_sharded_.empty(); }

  /// Null if FusedStep does not recognise this optimizer, or if fused_optimizer is false. The optimizer then steps by
  /// itself.
  [[nodiscard]] optim::FusedStep* fused() const { return fused_.get(); }

  // For loss scaling.
  /// Returns true if another prepared optimizer has some of the same parameters.
  [[nodiscard]] bool shares_parameters() {
    find_gradient_reducers();
    return shares_parameters_;
  }
  /// Returns true if the gradients were stepped on and this object did not zero them since.
  [[nodiscard]] bool step_consumed() const { return step_consumed_; }
  [[nodiscard]] ScaledGradients& scaled() { return scaled_; }
  [[nodiscard]] bool has_gradient() const;
  /// The same, or true if another stage of a pipeline has one.
  [[nodiscard]] bool has_gradient_on_any_stage() const { return has_gradient() || stages_have_gradient_; }
  /// \param has_gradient  Of any stage, after a step of a pipeline.
  void set_stages_have_gradient(bool has_gradient) { stages_have_gradient_ = has_gradient; }
  /// Number of calls of step() that used the gradients.
  [[nodiscard]] int64_t times_spent() const { return times_spent_; }
  /// Parameters at the last lookup.
  [[nodiscard]] const std::vector<at::Tensor>& parameters() const { return all_; }
  /// Looks up the parameters. The number changes if they or the registry changed.
  [[nodiscard]] int64_t parameters_version() {
    find_gradient_reducers();
    return found_;
  }
  [[nodiscard]] bool has_any_of(const std::unordered_set<const void*>& parameters) const;
  /// Returns dense tensors that contain all gradients: whole buckets if one gradient reducer averages exactly these
  /// parameters.
  [[nodiscard]] std::vector<at::Tensor> flat_gradients();
  /// Returns true if this is that optimizer, not another one at the address of a destroyed optimizer.
  [[nodiscard]] bool is(const torch::optim::Optimizer& optimizer) const;

 private:
  at::Tensor step_now(const torch::optim::Optimizer::LossClosure& closure);
  at::Tensor step_scaled(const torch::optim::Optimizer::LossClosure& closure);
  at::Tensor update();
  bool step_fused();
  void step_sharded(const optim::StepScale& scale);
  // Shards on which this rank steps: those of the gradient reducers, and whole parameters that no reducer averages.
  std::vector<state::ParameterShard> parameter_shards();
  void throw_closure_with_masters() const;
  void update_unless(const at::Tensor& skip);
  /// Address and version counter of each parameter's gradient, and the number of arrived gradients of sharded models.
  using WriteStamps = std::vector<std::pair<const void*, int64_t>>;
  [[nodiscard]] WriteStamps write_stamp_of_gradients() const;
  void zero_now(bool set_to_none);
  void spend();
  void check_reduced();
  [[nodiscard]] at::Tensor average_over_ranks(const at::Tensor& loss) const;
  void check_synchronized();
  void warn_about_step_inside_window() const;
  void warn_of_second_step();
  [[nodiscard]] std::unordered_set<const void*> parameters_of_models() const;
  void throw_foreign_parameters() const;
  void warn_about_foreign_parameters();
  void find_gradient_reducers();
  void find_pipelines();

  AcceleratorState* accelerator_state_;
  torch::optim::Optimizer& optimizer_;
  const std::type_info& type_;
  at::Tensor first_parameter_;  // kept alive, so that no other tensor gets its address
  std::unique_ptr<optim::FusedStep> fused_;
  const bool calls_closure_once_;  // at the start of step(): SGD, Adam, AdamW, Adagrad, RMSprop
  ScaledGradients scaled_;
  bool step_consumed_ = false;
  int64_t times_spent_ = 0;
  bool shares_parameters_ = false;
  bool reached_ = false;
  bool stages_have_gradient_ = false;  // until the gradients are zeroed
  WriteStamps waiting_;
  int64_t steps_ = 0;
  // Gradient reducers of the parameters, and the parameters that none averages. Looked up again after a change.
  std::vector<gradient::GradientReducer*> gradient_reducers_;
  std::vector<sharding::ParameterSharding*> sharded_;             // of models with some of the parameters
  std::vector<sharding::FullyShardedParameters*> fully_sharded_;  // those of them that shard gradients
  std::vector<ModelCore*> pipelines_;  // with some of the parameters, which are also in unmanaged_
  std::vector<at::Tensor> all_, unmanaged_;
  std::vector<at::Tensor> unreduced_;  // unmanaged_ without the parameters of pipelines
  int64_t seen_registry_ = -1;
  bool warned_foreign_ = false;  // since the last lookup
  int64_t found_ = 0;            // number of lookups
  // The accumulate() scope in which step() was last called without a step, and the scope's backwards until then.
  int64_t rested_scope_ = -1, rested_backwards_ = 0;
};

/// Zeroes, or drops, gradients that no gradient reducer keeps in buckets.
void zero_plain(const std::vector<at::Tensor>& parameters, bool set_to_none);

/// Handle of a prepared optimizer. Copies refer to the same optimizer. A default-constructed handle is empty, and its
/// use throws Error (usage) until an optimizer is assigned. A handle converts to a handle of a base class:
/// PreparedOptimizer<torch::optim::Optimizer> (accelerate::AnyOptimizer) refers to an optimizer of any type. Not
/// thread-safe: use it on the thread of its Accelerator.
template <typename Optimizer>
class PreparedOptimizer {
 public:
  PreparedOptimizer() = default;
  PreparedOptimizer(std::shared_ptr<Optimizer> optimizer, std::shared_ptr<OptimizerCore> core)
      : optimizer_(std::move(optimizer)), core_(std::move(core)) {}
  template <typename Derived>
  requires(std::derived_from<Derived, Optimizer> && !std::same_as<Derived, Optimizer>)
      // NOLINTNEXTLINE(google-explicit-constructor): as shared_ptr converts
      PreparedOptimizer(const PreparedOptimizer<Derived>& optimizer)
      : optimizer_(optimizer.optimizer_), core_(optimizer.core_) {}

  [[nodiscard]] bool is_empty() const { return core_ == nullptr; }
  /// \throws Error (usage) if the handle is empty.
  void require_assigned() const { (void)assigned(core_, "PreparedOptimizer"); }

  /// Steps if the accumulation window ends with this micro-batch, and has no effect otherwise. All ranks call it.
  /// \returns the loss of the closure, undefined without one.
  /// \throws Error (usage) if a gradient was never reduced over the ranks, and the errors of OptimizerCore::step().
  at::Tensor step(const torch::optim::Optimizer::LossClosure& closure = nullptr) const { return core().step(closure); }
  /// Zeroes or drops the gradients. Within an accumulation window it has no effect, as in Hugging Face Accelerate.
  void zero_grad(bool set_to_none = true) const { core().zero_grad(set_to_none); }

  /// Accesses the optimizer in its current state. With fp16 on an accelerator and a schedule, this waits for the last
  /// step's flag.
  Optimizer* operator->() const { return &**this; }
  Optimizer& operator*() const {
    core().run_deferred_schedules();
    return *optimizer_;
  }
  [[nodiscard]] const std::shared_ptr<Optimizer>& unwrap() const { return assigned(optimizer_, "PreparedOptimizer"); }
  [[nodiscard]] auto& param_groups() const { return (**this).param_groups(); }
  [[nodiscard]] auto& state() const {
    core().discard_skipped_steps();
    return optimizer_->state();
  }
  /// With mixed_precision fp16, returns whether the last step was skipped because of inf or NaN. Waits for the device.
  [[nodiscard]] bool step_was_skipped() const { return core().step_was_skipped(); }
  /// The same on the device without a wait, for ema.update(): 0-dim float32, 1 if the step was skipped. Unset without
  /// fp16, and before the first step.
  [[nodiscard]] std::optional<at::Tensor> skip_flag() const { return core().skip_flag(); }
  [[nodiscard]] OptimizerCore& core() const { return *core_ptr(); }
  [[nodiscard]] const std::shared_ptr<OptimizerCore>& core_ptr() const { return assigned(core_, "PreparedOptimizer"); }

  friend bool operator==(const PreparedOptimizer& a, const PreparedOptimizer& b) { return a.core_ == b.core_; }

 private:
  template <typename>
  friend class PreparedOptimizer;

  std::shared_ptr<Optimizer> optimizer_;
  std::shared_ptr<OptimizerCore> core_;
};

}  // namespace accelerate::prepared
