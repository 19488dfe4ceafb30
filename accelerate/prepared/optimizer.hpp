// SPDX-License-Identifier: Apache-2.0
// An optimizer as prepare() returns it: steps at the end of an accumulation window, fused where the kernel exists.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <typeinfo>
#include <unordered_set>
#include <utility>
#include <vector>

#include "accelerate/optim/fused_step.hpp"
#include "accelerate/prepared/scaled_gradients.hpp"
#include "accelerate/prepared/shared.hpp"
#include "accelerate/state/piece.hpp"

namespace accelerate::gradient {
class Engine;
}

namespace accelerate::prepared {

class OptimizerCore : public Entry {
 public:
  static constexpr Kind entry_kind = Kind::optimizer;
  OptimizerCore(Shared& shared, torch::optim::Optimizer& optimizer);

  /// Nothing within an accumulation window; else one update, fused for the stock optimizers that FusedStep knows.
  /// Throws Error (usage) when a gradient on this rank was never reduced over the ranks (after each call of a closure),
  /// when a parameter is listed twice, and when none has a gradient or is a prepared model's.
  ///
  /// An optimizer that calls its closure itself (LBFGS) is given the mean of the ranks' losses, so that all decide
  /// alike: each rank calls it as often, and closures return a mean over the rank's samples. Within local SGD and a
  /// join of uneven inputs it is each rank's own.
  ///
  /// With loss scaling the gradients are unscaled first, and nothing is updated where one is inf or NaN. The fused step
  /// reads that flag on the device; before an optimizer's own step the host waits for it. Throws Error: usage for a
  /// closure that the optimizer calls itself, data for a scale at its floor.
  at::Tensor step(const torch::optim::Optimizer::LossClosure& closure);

  /// Once after every step; else nothing within an accumulation window, up to the backward of its last micro-batch that
  /// reaches this optimizer's parameters. So it may come first or last in the loop, and between two losses' backwards.
  void zero_grad(bool set_to_none);

  /// The micro-batch that ends a window of several begins: gradients are those of the ones before until a backward of
  /// its reaches them.
  void begin_last_micro_batch() { reached_ = false; }
  /// Around the graph of a backward in it, before engines reduce what waits, which changes gradients too.
  void begin_backward() { waiting_ = imprint_of_gradients(); }
  void backward_done() { reached_ = reached_ || imprint_of_gradients() != waiting_; }

  /// Gradients are gone, wherever a window stands: what was loaded is not to be stepped on with them.
  void drop_gradients(bool set_to_none = true);

  [[nodiscard]] torch::optim::Optimizer& optimizer() const { return optimizer_; }
  /// Whether the last step that was to be made was skipped for inf or NaN. Waits for the device.
  [[nodiscard]] bool step_was_skipped();
  /// float32 scalar of the device, 1: the last step that was to be made was skipped. The host does not wait. Unset:
  /// loss scaling does not ask, or no step was to be made yet.
  [[nodiscard]] std::optional<at::Tensor> skip_flag() const;
  /// The optimizer's state counts the steps that were made: for whoever reads it. Waits for the device where steps may
  /// have been skipped on it.
  void take_back_cancelled();
  /// Schedules that wait for the last step's flag move: for whoever reads or sets rates. Waits for it where one does.
  void move_what_is_owed();

  /// Null if this optimizer steps by itself: it is not one of those that FusedStep recognises, or fused_optimizer is
  /// false.
  [[nodiscard]] optim::FusedStep* fused() const { return fused_.get(); }

  // For loss scaling.
  /// Another prepared optimizer has some of its parameters.
  [[nodiscard]] bool shares_parameters() {
    find_engines();
    return shares_parameters_;
  }
  /// The gradients have been stepped on, and not zeroed through us since.
  [[nodiscard]] bool spent() const { return spent_; }
  [[nodiscard]] ScaledGradients& scaled() { return scaled_; }
  [[nodiscard]] bool has_gradient() const;
  /// Its parameters when they were last looked up.
  [[nodiscard]] const std::vector<at::Tensor>& parameters() const { return all_; }
  /// Looks the parameters up; differs from before if they or the registry changed.
  [[nodiscard]] int64_t parameters_version() {
    find_engines();
    return found_;
  }
  [[nodiscard]] bool has_any_of(const std::unordered_set<const void*>& parameters) const;
  /// Dense tensors that hold all gradients: whole buckets where one engine averages exactly these parameters.
  [[nodiscard]] std::vector<at::Tensor> flat_gradients();
  /// Whether this is that optimizer, not one that took its address after it was gone.
  [[nodiscard]] bool is(const torch::optim::Optimizer& optimizer) const;

 private:
  at::Tensor step_now(const torch::optim::Optimizer::LossClosure& closure);
  at::Tensor step_scaled(const torch::optim::Optimizer::LossClosure& closure);
  at::Tensor update();
  bool step_fused();
  // What this rank steps on: as the engines of its parameters say, and the whole of those that nobody reduces.
  std::vector<state::Piece> pieces();
  void refuse_closure_on_masters() const;
  void update_unless(const at::Tensor& skip);
  /// Which tensor, in which state, is each parameter's gradient.
  using Imprints = std::vector<std::pair<const void*, int64_t>>;
  [[nodiscard]] Imprints imprint_of_gradients() const;
  void zero_now(bool set_to_none);
  void check_reduced();
  [[nodiscard]] at::Tensor mean_over_ranks(const at::Tensor& loss) const;
  void check_synchronized();
  void warn_of_odd_step() const;
  void warn_of_second_step();
  [[nodiscard]] std::unordered_set<const void*> parameters_of_models() const;
  void refuse_foreign_parameters() const;
  void tell_of_foreign_parameters();
  void find_engines();

  Shared* shared_;
  torch::optim::Optimizer& optimizer_;
  const std::type_info& type_;
  at::Tensor first_parameter_;  // holds it, so that no other can have its address
  std::unique_ptr<optim::FusedStep> fused_;
  const bool calls_closure_once_;  // at its beginning: SGD, Adam, AdamW, Adagrad, RMSprop
  ScaledGradients scaled_;
  bool spent_ = false;
  bool shares_parameters_ = false;
  bool reached_ = false;
  Imprints waiting_;
  int64_t steps_ = 0;
  // Engines of our parameters, and the parameters nobody reduces; found again when either side changed.
  std::vector<gradient::Engine*> engines_;
  std::vector<at::Tensor> all_, unmanaged_;
  int64_t seen_registry_ = -1;
  bool foreign_told_ = false;  // since they were found
  int64_t found_ = 0;          // how often
  // The accumulate() scope in which step() was last called without a step, and the scope's backwards until then.
  int64_t rested_scope_ = -1, rested_backwards_ = 0;
};

/// A handle: copies refer to the same prepared optimizer.
template <typename Optimizer>
class PreparedOptimizer {
 public:
  PreparedOptimizer(std::shared_ptr<Optimizer> optimizer, std::shared_ptr<OptimizerCore> core)
      : optimizer_(std::move(optimizer)), core_(std::move(core)) {}

  at::Tensor step(const torch::optim::Optimizer::LossClosure& closure = nullptr) const { return core_->step(closure); }
  void zero_grad(bool set_to_none = true) const { core_->zero_grad(set_to_none); }

  /// The optimizer as it stands now: with fp16 on an accelerator and a schedule this waits for the last step's flag.
  Optimizer* operator->() const { return &**this; }
  Optimizer& operator*() const {
    core_->move_what_is_owed();
    return *optimizer_;
  }
  [[nodiscard]] const std::shared_ptr<Optimizer>& unwrap() const { return optimizer_; }
  [[nodiscard]] auto& param_groups() const { return (**this).param_groups(); }
  [[nodiscard]] auto& state() const {
    core_->take_back_cancelled();
    return optimizer_->state();
  }
  /// mixed_precision fp16: whether the last step was skipped because a gradient was inf or NaN. Waits for the device.
  [[nodiscard]] bool step_was_skipped() const { return core_->step_was_skipped(); }
  /// The same on the device, without a wait: 0-dim float32, 1 where it was skipped; for ema.update(). Unset without
  /// fp16, and before the first step.
  [[nodiscard]] std::optional<at::Tensor> skip_flag() const { return core_->skip_flag(); }
  [[nodiscard]] OptimizerCore& core() const { return *core_; }
  [[nodiscard]] const std::shared_ptr<OptimizerCore>& core_ptr() const { return core_; }

  friend bool operator==(const PreparedOptimizer& a, const PreparedOptimizer& b) { return a.core_ == b.core_; }

 private:
  std::shared_ptr<Optimizer> optimizer_;
  std::shared_ptr<OptimizerCore> core_;
};

}  // namespace accelerate::prepared
