// SPDX-License-Identifier: Apache-2.0
// A module as prepare() returns it: called like the original, its gradients reduced over the ranks.
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

#include "accelerate/device/out_of_memory.hpp"
#include "accelerate/gradient/coalesced.hpp"
#include "accelerate/gradient/engine.hpp"
#include "accelerate/gradient/uneven_join.hpp"
#include "accelerate/prepared/handle.hpp"
#include "accelerate/prepared/in_precision.hpp"
#include "accelerate/prepared/shared.hpp"

namespace torch::jit {
struct Module;
}

namespace accelerate::prepared {

struct ModelOptions {
  gradient::EngineOptions engine{};
  /// Rank 0's buffers (BatchNorm's statistics) go to all ranks before each forward that follows a synchronised one, in
  /// evaluation too, as in PyTorch: all ranks then run model(x). model->forward(x) is a rank's own affair. If false,
  /// each rank keeps the buffers that it has, from prepare() on.
  bool broadcast_buffers = true;
  /// For evaluation only: moved to the device, never reduced.
  bool evaluation_mode = false;
  bool operator==(const ModelOptions&) const = default;
};

/// What is the same for every type of module: its tensors, its engine and whether its next backward is synchronised.
class ModelCore : public Entry {
 public:
  static constexpr Kind entry_kind = Kind::model;
  ModelCore(Shared& shared, const void* identity, std::vector<gradient::NamedTensor> parameters,
            std::vector<gradient::NamedTensor> buffers, const ModelOptions& options);

  /// What its forward computes in; unset: as its tensors are.
  [[nodiscard]] std::optional<precision::AutocastRegion> autocast() const;
  /// What low-precision outputs become; unset: they stay as they are.
  [[nodiscard]] const std::optional<c10::ScalarType>& output_dtype() const { return shared_->policy.output; }

  /// Before every prepared forward: broadcasts the buffers where that is due, and tells the engine whether no_sync is
  /// open (PyTorch's rule: it counts where it is open at the forward).
  void before_forward();

  /// Whether this is the module at that address, prepared with those options, with those parameters: frozen and free,
  /// and of the dtypes and on the devices that they had. Preparing it again gives this object.
  [[nodiscard]] bool is(const void* identity, const std::vector<gradient::NamedTensor>& parameters,
                        const ModelOptions& options) const;
  [[nodiscard]] const ModelOptions& options() const { return options_; }
  [[nodiscard]] const Place& place() const { return shared_->place; }
  [[nodiscard]] const std::vector<gradient::NamedTensor>& parameters() const { return parameters_; }
  [[nodiscard]] const std::vector<gradient::NamedTensor>& buffers() const {
    follow_buffers();
    return buffers_;
  }
  /// Of a module whose forward exchanges buffers for other tensors, as TorchScript's assignments do: what has them now.
  void exchanges_buffers(std::function<std::vector<gradient::NamedTensor>()> now);
  /// Null on one rank, for evaluation, where nothing needs a gradient or other models' engines see to all of it, and
  /// after retire().
  [[nodiscard]] gradient::Engine* engine() const { return retired_ ? nullptr : engine_.get(); }
  /// The engine, and those of other models that average parameters which this one shares with them.
  [[nodiscard]] std::vector<gradient::Engine*> engines();

  /// What optimizers step on: its parameters by name, with their gradients and, where they are stored in bfloat16,
  /// their masters.
  [[nodiscard]] std::vector<state::Piece> pieces() const;

  /// Of all models: parameters, gradients, masters, buffers and what optimizers keep, for an error about memory.
  [[nodiscard]] std::vector<device::KnownTensor> known_tensors() const;

  /// Throws Error (usage) on every rank where the ranks' parameters differ, or buffers that the next forward would not
  /// make rank 0's anyway. See nn/synchronized.hpp.
  void check_synchronized(std::string_view when = {}) const;

  /// Null where buffers are not broadcast.
  [[nodiscard]] gradient::BufferBroadcast* buffer_broadcast() const {
    return retired_ || !forward_broadcasts_ ? nullptr : buffer_broadcast_.get();
  }
  /// Returns each buffer of this rank with rank 0's values of it; no buffer changes. Empty without broadcast_buffers,
  /// because then the ranks' buffers need not even have the same shapes. Collective.
  [[nodiscard]] std::vector<gradient::BufferBroadcast::WithRoot> buffers_with_rank_0();
  /// Restores, after the buffers of each rank, whether the next forward broadcasts rank 0's. Every rank gives the same.
  void resume_buffers(bool next_forward_broadcasts);
  /// Its masters, as a join makes buffers equal in the end; null where it has none. Collective.
  [[nodiscard]] gradient::BufferBroadcast* masters_for_join();

  /// The module still runs; its gradients are averaged no more.
  void retire() override;

  void open_no_sync();
  void close_no_sync();
  /// One micro-batch of accumulate(). sync: the gradients of this model are reduced in it, whether or not this rank
  /// calls the model.
  void open_window(bool sync);
  void close_window();
  /// To be called when all models' windows are open: what this one shares with others is reduced where this one is.
  void synchronise_partners();
  /// Calls zero_grad() of the optimizers that have only parameters of this model. The gradients of its other parameters
  /// are kept within an accumulation window by the same rule, and count as used once an optimizer stepped on some.
  void zero_grad(bool set_to_none);
  [[nodiscard]] bool in_no_sync() const { return no_sync_ > 0; }
  [[nodiscard]] bool synchronises() const { return no_sync_ == 0 && window_.value_or(true); }

 private:
  void check_dtypes() const;
  void meet();
  void follow_buffers() const;
  /// Parameters that no other model's engine averages; the others go to elsewhere_.
  std::vector<gradient::NamedTensor> own_parameters();
  void find_partners();

  Shared* shared_;
  std::vector<gradient::NamedTensor> parameters_;
  mutable std::vector<gradient::NamedTensor> buffers_;
  std::function<std::vector<gradient::NamedTensor>()> buffers_now_;
  ModelOptions options_;
  std::vector<std::string> described_;  // each parameter when prepared
  std::unique_ptr<gradient::BufferBroadcast> buffer_broadcast_, masters_for_join_;
  std::unique_ptr<gradient::Engine> engine_;
  bool forward_broadcasts_ = true;  // false: the model does not learn, so before_forward() does nothing
  bool retired_ = false;
  int64_t spent_when_zeroed_ = 0;  // steps of optimizers that have parameters of other models too
  int64_t no_sync_ = 0;
  std::optional<bool> window_;  // the micro-batch of accumulate() that is open
  // Trainable parameters that engines of other models average, and those models; found again when models came or went.
  std::vector<at::Tensor> elsewhere_;
  std::vector<std::shared_ptr<ModelCore>> partners_;
  int64_t seen_registry_ = -1;
};

/// The list without repetitions: LibTorch names a weight as often as it is registered.
std::vector<at::Tensor> each_once(const std::vector<at::Tensor>& parameters);

/// Dense tensors that hold these parameters' gradients: whole buckets where one model's engine averages exactly them,
/// else one tensor each.
std::vector<at::Tensor> flat_gradients(const std::vector<std::shared_ptr<ModelCore>>& models,
                                       const std::vector<at::Tensor>& parameters);

/// These parameters as pieces, by the names that the models have for them ("parameter 3" of the list where none has).
std::vector<state::Piece> named_pieces(const std::vector<std::shared_ptr<ModelCore>>& models,
                                       const std::vector<at::Tensor>& parameters);

/// The models that are reduced, as a join takes them, with those that average parameters for them.
std::vector<gradient::JoinModel> join_models(const std::vector<std::shared_ptr<ModelCore>>& models);

/// A handle: copies refer to the same prepared model. A handle made without arguments is empty until one is assigned;
/// its use until then throws Error (usage).
///
/// A handle converts to one of a base class: PreparedModel<torch::nn::Module> (accelerate::AnyModel) is every model's.
/// It has parameters(), train(), eval() and zero_grad(), but no forward, which torch::nn::Module does not have.
///
/// `model(x)` runs the module's forward. `model->` is the module itself: gradients of what runs through it are reduced
/// all the same, but buffers are broadcast, no_sync is noticed and mixed precision is used by model(x) and
/// model.forward(x) only.
///
/// A parameter in several prepared models is averaged once, with those of the model that was prepared first: no_sync
/// for another model alone does not hold it back (it is then averaged more often than needed, to the same result), and
/// a synchronised forward of any of them has it averaged.
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
    return run([&]() -> decltype(auto) { return unwrap()->forward(std::forward<Args>(args)...); });
  }

  /// TorchScript takes its inputs as a list: model({x}).
  c10::IValue operator()(std::vector<c10::IValue> inputs) const requires std::same_as<Module, torch::jit::Module> {
    return forward(std::move(inputs));
  }
  c10::IValue forward(std::vector<c10::IValue> inputs) const requires std::same_as<Module, torch::jit::Module> {
    return run([&] { return unwrap()->forward(std::move(inputs)); });
  }

  Module* operator->() const { return unwrap().get(); }
  Module& operator*() const { return *unwrap(); }
  /// The module that was given to prepare().
  [[nodiscard]] const std::shared_ptr<Module>& unwrap() const { return assigned(module_, "PreparedModel"); }
  [[nodiscard]] ModelCore& core() const { return *core_ptr(); }
  [[nodiscard]] const std::shared_ptr<ModelCore>& core_ptr() const { return assigned(core_, "PreparedModel"); }

  /// Each once, also where layers share it; module.parameters() lists it as often as it is registered.
  [[nodiscard]] std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> list;
    for (const auto& parameter : core().parameters()) list.push_back(parameter.tensor);
    return each_once(list);
  }
  [[nodiscard]] std::vector<state::Piece> pieces() const { return core().pieces(); }
  void train(bool on = true) const { unwrap()->train(on); }
  void eval() const { unwrap()->eval(); }
  /// The gradients of its parameters become undefined, or zeros. Within an accumulation window the call does nothing,
  /// as that of a prepared optimizer: see OptimizerCore::zero_grad().
  void zero_grad(bool set_to_none = true) const { core().zero_grad(set_to_none); }

  friend bool operator==(const PreparedModel& a, const PreparedModel& b) { return a.core_ == b.core_; }

 private:
  template <typename>
  friend class PreparedModel;

  template <typename Forward>
  decltype(auto) run(const Forward& forward) const {
    check_result<std::invoke_result_t<const Forward&>>(core().output_dtype(), core_->place());
    core_->before_forward();
    return device::naming_out_of_memory(
        core_->place(), "forward",
        [&]() -> decltype(auto) { return in_precision(core_->autocast(), core_->output_dtype(), forward); },
        [this] { return core_->known_tensors(); });
  }

  std::shared_ptr<Module> module_;
  std::shared_ptr<ModelCore> core_;
};

}  // namespace accelerate::prepared
