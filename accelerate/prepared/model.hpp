// SPDX-License-Identifier: Apache-2.0
// The prepared form of a module: it is called like the original, and its gradients are reduced over the ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerate/device/out_of_memory_error.hpp"
#include "accelerate/gradient/coalesced.hpp"
#include "accelerate/gradient/gradient_reducer.hpp"
#include "accelerate/gradient/uneven_join.hpp"
#include "accelerate/prepared/accelerator_state.hpp"
#include "accelerate/prepared/autocast_forward.hpp"
#include "accelerate/prepared/handle.hpp"

namespace torch::jit {
struct Module;
}

namespace accelerate::sharding {
class FullyShardedParameters;
class ParameterSharding;
}  // namespace accelerate::sharding

namespace accelerate::pipeline {
struct ModelLayout;
}

namespace accelerate::prepared {

struct ModelOptions {
  gradient::GradientReducerOptions gradient_reducer{};
  /// Broadcasts rank 0's buffers (BatchNorm statistics) before each forward that follows a synchronised one, also in
  /// evaluation, as in PyTorch. All ranks must then run model(x); model->forward(x) is local to a rank. If false, each
  /// rank keeps its own buffers from prepare() on.
  bool broadcast_buffers = true;
  /// If true, the model is for evaluation only: it is moved to the device, and its gradients are never reduced.
  bool evaluation_mode = false;
  /// Modules that are units of sharding besides UnitOptions::units. prepare() finds them by class.
  std::vector<std::string> shard_units{};
  /// Set for an nn::Pipeline. Its steps average the gradients, so the model has no gradient reducer.
  std::shared_ptr<const pipeline::ModelLayout> pipeline{};
  bool operator==(const ModelOptions&) const = default;
};

/// Part of a prepared model that does not depend on the module type: tensors, gradient reducer, synchronisation state.
class ModelCore : public Entry {
 public:
  static constexpr Kind kEntryKind = Kind::model;
  ModelCore(AcceleratorState& shared, const void* identity, std::vector<gradient::NamedTensor> parameters,
            std::vector<gradient::NamedTensor> buffers, const ModelOptions& options);
  ~ModelCore() override;

  /// Returns the autocast region of the forward. If unset, the forward computes in the dtypes of its tensors.
  [[nodiscard]] std::optional<precision::AutocastRegion> autocast() const;
  /// Returns the dtype to which low-precision outputs are cast. If unset, they are not cast.
  [[nodiscard]] const std::optional<c10::ScalarType>& output_dtype() const { return accelerator_state_->policy.output; }

  /// Must be called before every prepared forward. Broadcasts the buffers if necessary, and notifies the gradient
  /// reducer whether the forward is synchronised. As in PyTorch, no_sync counts if it is open at the forward.
  void before_forward();
  /// Must be called when that forward ended, or failed.
  void after_forward() noexcept;

  /// Returns true if this core was prepared from the module at that address with the same options and parameters, and
  /// no parameter was frozen, unfrozen, cast or moved since. prepare() then returns this core.
  [[nodiscard]] bool is(const void* identity, const std::vector<gradient::NamedTensor>& parameters,
                        const ModelOptions& options) const;
  [[nodiscard]] const ModelOptions& options() const { return options_; }
  [[nodiscard]] const RankContext& place() const { return accelerator_state_->place; }
  [[nodiscard]] const AcceleratorState& shared() const { return *accelerator_state_; }
  [[nodiscard]] const std::vector<gradient::NamedTensor>& parameters() const { return parameters_; }
  [[nodiscard]] const std::vector<gradient::NamedTensor>& buffers() const {
    follow_buffers();
    return buffers_;
  }
  /// For a module with a forward that replaces buffers by other tensors, as assignments in TorchScript do.
  /// \param now  Returns the current buffers.
  void exchanges_buffers(std::function<std::vector<gradient::NamedTensor>()> now);
  /// Returns the gradient reducer. Null without a process group, for evaluation, after retire(), if no parameter needs
  /// a gradient that other models' reducers do not average, or if gradients are sharded.
  [[nodiscard]] gradient::GradientReducer* gradient_reducer() const {
    return retired_ ? nullptr : gradient_reducer_.get();
  }
  /// Returns the division of this model's parameters over the ranks, without those that another model divides. Null
  /// without sharding, with a single rank, for evaluation, after retire(), or if no parameter needs a gradient.
  [[nodiscard]] sharding::ParameterSharding* parameter_sharding() const {
    return retired_ ? nullptr : parameter_sharding_.get();
  }
  /// The same if gradients are sharded (shard_grad_op, full_shard), otherwise null.
  [[nodiscard]] sharding::FullyShardedParameters* fully_sharded() const { return retired_ ? nullptr : fully_sharded_; }
  /// Returns the fully sharded models that have parameters of this model: itself, and those that share parameters.
  [[nodiscard]] std::vector<sharding::FullyShardedParameters*> sharded_in_forward() const;
  /// Waits until the memory of all sharded parameters has the values of the last step. Operators wait by themselves.
  void complete_step() const { complete_steps(*accelerator_state_); }
  /// Returns "not sharded", or the units and their sizes.
  [[nodiscard]] std::string sharding_plan() const;
  /// Returns true if this model's gradient reducer or sharding manages the parameter.
  [[nodiscard]] bool manages(const at::Tensor& parameter) const;
  /// Returns the gradient reducer, and those of other models that average parameters shared with this model.
  [[nodiscard]] std::vector<gradient::GradientReducer*> gradient_reducers();

  /// Returns the parameters by name, with their gradients and, if they are stored in bfloat16, their masters.
  [[nodiscard]] std::vector<state::ParameterShard> parameter_shards() const;

  /// Returns the parameters, gradients, masters, buffers and optimizer states of all models, for an out-of-memory
  /// error.
  [[nodiscard]] std::vector<device::MemoryEntry> memory_inventory() const;

  /// Compares the parameters, and the buffers that the next forward does not broadcast, across the ranks. Collective.
  /// See nn/synchronized.hpp.
  /// \throws Error (usage) on every rank if they differ.
  void check_synchronized(std::string_view when = {}) const;

  /// Null if buffers are not broadcast.
  [[nodiscard]] gradient::BufferBroadcast* buffer_broadcast() const {
    return retired_ || !forward_broadcasts_ ? nullptr : buffer_broadcast_.get();
  }
  /// Returns each buffer of this rank with rank 0's values of it; no buffer changes. Empty without broadcast_buffers,
  /// because the ranks' buffers may then differ even in shape. Collective.
  [[nodiscard]] std::vector<gradient::BufferBroadcast::WithRoot> buffers_with_rank_0();
  /// Restores whether the next forward broadcasts rank 0's buffers. Must be called after the buffers were loaded, with
  /// the same value on every rank.
  void resume_buffers(bool next_forward_broadcasts);
  /// Returns the masters in the form that a join makes equal at its end, or null if there are none. Collective.
  [[nodiscard]] gradient::BufferBroadcast* join_masters();

  /// Runs the forwards and backwards of a step of a pipeline, and then averages the gradients over the data parallel
  /// ranks, unless no_sync() or an accumulation window keeps them local. Collective.
  void run_micro_batches(const std::function<void()>& run);
  /// \throws Error (usage) if gradients of a pipeline are still local.
  void check_averaged() const;
  /// Call it after the gradients of some parameters were set to undefined or zero.
  void gradients_zeroed(const std::vector<at::Tensor>& zeroed);
  [[nodiscard]] bool has_any_of(const std::vector<at::Tensor>& parameters) const;

  /// The module still runs afterwards, but its gradients are no longer averaged.
  void retire() override;
  [[nodiscard]] bool is_retired() const { return retired_; }

  void open_no_sync();
  void close_no_sync();
  /// The next backward reduces the gradients, even if its forward ran inside no_sync.
  void trigger_sync();
  /// Opens one micro-batch of accumulate().
  /// \param sync  The gradients of this model are reduced in it, even if this rank does not call the model.
  void open_window(bool sync);
  void close_window();
  /// Must be called after the windows of all models are open. If this model synchronises, the models that average its
  /// shared parameters do, too.
  void synchronize_sharing_models();
  /// Calls zero_grad() of the optimizers that have only parameters of this model. By the same rule, the gradients of
  /// its other parameters are kept within an accumulation window. They count as used after an optimizer stepped on some
  /// of them.
  void zero_grad(bool set_to_none);
  [[nodiscard]] bool in_no_sync() const { return no_sync_ > 0; }
  [[nodiscard]] bool synchronises() const { return no_sync_ == 0 && window_.value_or(true); }

 private:
  void notify_of_forward();
  void check_dtypes() const;
  void synchronize_initial_values();
  void shard(const std::vector<gradient::NamedTensor>& own);
  void log_sharding_plan() const;
  void follow_buffers() const;
  /// Returns the parameters that no other model's gradient reducer averages. The others are added to
  /// averaged_elsewhere_.
  std::vector<gradient::NamedTensor> own_parameters();
  void refuse_shared_with_pipeline() const;
  void find_models_sharing_parameters();

  AcceleratorState* accelerator_state_;
  std::vector<gradient::NamedTensor> parameters_;
  mutable std::vector<gradient::NamedTensor> buffers_;
  std::function<std::vector<gradient::NamedTensor>()> buffers_now_;
  ModelOptions options_;
  std::vector<std::string> described_;  // description of each parameter at prepare()
  std::unique_ptr<gradient::BufferBroadcast> buffer_broadcast_, masters_for_join_;
  std::unique_ptr<gradient::GradientReducer> gradient_reducer_;
  std::unique_ptr<sharding::ParameterSharding> parameter_sharding_;
  sharding::FullyShardedParameters* fully_sharded_ = nullptr;  // parameter_sharding_, if it shards gradients
  bool forward_broadcasts_ = true;  // if false, nothing is trainable and before_forward() does nothing
  bool retired_ = false;
  bool has_local_gradients_ = false, averages_next_step_ = false;  // of a pipeline
  int64_t spent_when_zeroed_ = 0;  // steps of optimizers that also have parameters of other models
  int64_t no_sync_ = 0;
  std::optional<bool> window_;  // set while a micro-batch of accumulate() is open
  // Parameters that gradient reducers of other models average, and these models as of seen_registry_.
  std::vector<at::Tensor> averaged_elsewhere_;
  std::vector<std::shared_ptr<ModelCore>> sharing_models_;
  int64_t seen_registry_ = -1;
};

/// Calls after_forward() at the end of its scope, also after an exception. Construct it after before_forward().
class AfterForward {
 public:
  explicit AfterForward(ModelCore& core) : core_(core) {}
  ~AfterForward() { core_.after_forward(); }
  AfterForward(const AfterForward&) = delete;
  AfterForward& operator=(const AfterForward&) = delete;

 private:
  ModelCore& core_;
};

/// Returns the models with sharded gradients or parameters.
[[nodiscard]] std::vector<sharding::FullyShardedParameters*> fully_sharded_models(AcceleratorState& shared);

/// Returns the sharded model that keeps this rank's part of the parameter's float32 master, or null.
[[nodiscard]] sharding::FullyShardedParameters* sharding_of_master(AcceleratorState& shared,
                                                                   const at::Tensor& parameter);

/// Returns the list without duplicates. LibTorch lists a shared weight once per registration.
std::vector<at::Tensor> unique_tensors(const std::vector<at::Tensor>& parameters);

/// Returns dense tensors that contain the gradients of these parameters: whole buckets if one model's gradient reducer
/// averages exactly these parameters, otherwise one tensor per parameter.
std::vector<at::Tensor> flat_gradients(const std::vector<std::shared_ptr<ModelCore>>& models,
                                       const std::vector<at::Tensor>& parameters);

/// Returns the group that shards the gradients of the parameters over its ranks, for a norm; null if each rank has
/// whole gradients. \throws Error (usage) if some are sharded and others are whole, because one norm would count the
/// whole ones several
///         times.
const comm::Group* group_of_sharded_gradients(const std::vector<std::shared_ptr<ModelCore>>& models,
                                              const std::vector<at::Tensor>& parameters);

/// Returns these parameters as shards, with the names that they have in the models. A parameter of no model is named by
/// its position in the list, such as "parameter 3".
std::vector<state::ParameterShard> named_shards(const std::vector<std::shared_ptr<ModelCore>>& models,
                                                const std::vector<at::Tensor>& parameters);

/// Returns the models that are reduced, as arguments of a join, with the models that average parameters for them.
std::vector<gradient::JoinModel> join_models(const std::vector<std::shared_ptr<ModelCore>>& models);

/// Handle of a prepared model. Copies refer to the same model. A default-constructed handle is empty, and its use
/// throws Error (usage) until a model is assigned.
///
/// A handle converts to a handle of a base class. PreparedModel<torch::nn::Module> (accelerate::AnyModel) refers to a
/// model of any type. It has parameters(), train(), eval() and zero_grad(), but no forward, because torch::nn::Module
/// has none.
///
/// `model(x)` runs the module's forward. `model->` accesses the module itself. Gradients are reduced in both cases, but
/// only model(x) and model.forward(x) broadcast buffers, apply no_sync and use mixed precision.
///
/// A parameter in several prepared models is averaged once, with those of the model that was prepared first. no_sync
/// for another model alone does not prevent that: it is then averaged more often than needed, with the same result. A
/// synchronised forward of any of these models averages it. Not thread-safe: use it on the thread of its Accelerator.
template <typename Module>
class PreparedModel {
 public:
  PreparedModel() = default;
  PreparedModel(std::shared_ptr<Module> module, std::shared_ptr<ModelCore> core)
      : module_(std::move(module)), core_(std::move(core)) {}
  template <typename Derived>
  requires(std::derived_from<Derived, Module> && !std::same_as<Derived, Module>)
      // NOLINTNEXTLINE(google-explicit-constructor): as shared_ptr converts
      PreparedModel(const PreparedModel<Derived>& model)
      : module_(model.module_), core_(model.core_) {}

  [[nodiscard]] bool is_empty() const { return core_ == nullptr; }
  /// \throws Error (usage) if the handle is empty.
  void require_assigned() const { (void)assigned(core_, "PreparedModel"); }

  template <typename... Args>
  decltype(auto) operator()(Args&&... args) const {
    return forward(std::forward<Args>(args)...);
  }
  template <typename... Args>
  decltype(auto) forward(Args&&... args) const {
    return run([&]() -> decltype(auto) { return module()->forward(std::forward<Args>(args)...); });
  }

  /// TorchScript takes its inputs as a list: model({x}).
  c10::IValue operator()(std::vector<c10::IValue> inputs) const requires std::same_as<Module, torch::jit::Module> {
    return forward(std::move(inputs));
  }
  c10::IValue forward(std::vector<c10::IValue> inputs) const requires std::same_as<Module, torch::jit::Module> {
    return run([&] { return module()->forward(std::move(inputs)); });
  }

  Module* operator->() const { return unwrap().get(); }
  Module& operator*() const { return *unwrap(); }
  /// Returns the module that was given to prepare(). Waits for the values of the last step, as operator-> and
  /// parameters() do, because the caller may read memory without an operator.
  [[nodiscard]] const std::shared_ptr<Module>& unwrap() const {
    core().complete_step();
    return module();
  }
  [[nodiscard]] ModelCore& core() const { return *core_ptr(); }
  [[nodiscard]] const std::shared_ptr<ModelCore>& core_ptr() const { return assigned(core_, "PreparedModel"); }

  /// Returns each parameter once, even if layers share it. module.parameters() lists it once per registration.
  [[nodiscard]] std::vector<at::Tensor> parameters() const {
    core().complete_step();
    std::vector<at::Tensor> list;
    for (const auto& parameter : core().parameters()) list.push_back(parameter.tensor);
    return unique_tensors(list);
  }
  [[nodiscard]] std::vector<state::ParameterShard> parameter_shards() const { return core().parameter_shards(); }
  void train(bool on = true) const { module()->train(on); }
  void eval() const { module()->eval(); }
  /// Sets the gradients to undefined, or to zero. Within an accumulation window the call does nothing, like that of a
  /// prepared optimizer; see OptimizerCore::zero_grad().
  void zero_grad(bool set_to_none = true) const { core().zero_grad(set_to_none); }

  friend bool operator==(const PreparedModel& a, const PreparedModel& b) { return a.core_ == b.core_; }

 private:
  template <typename>
  friend class PreparedModel;

  [[nodiscard]] const std::shared_ptr<Module>& module() const { return assigned(module_, "PreparedModel"); }

  template <typename Forward>
  decltype(auto) run(const Forward& forward) const {
    ModelCore& core = this->core();  // before its uses, because the order of arguments is unspecified
    check_result<std::invoke_result_t<const Forward&>>(core.output_dtype(), core.place());
    core.before_forward();
    const AfterForward ends(core);
    return device::with_out_of_memory_report(
        core.place(), "forward",
        [&]() -> decltype(auto) { return forward_in_precision(core.autocast(), core.output_dtype(), forward); },
        [&] { return core.memory_inventory(); });
  }

  std::shared_ptr<Module> module_;
  std::shared_ptr<ModelCore> core_;
};

}  // namespace accelerate::prepared
