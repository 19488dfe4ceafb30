// SPDX-License-Identifier: Apache-2.0
// A module as prepare() returns it: called like the original, its gradients reduced over the ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/gradient/coalesced.hpp"
#include "accelerate/gradient/engine.hpp"
#include "accelerate/gradient/uneven_join.hpp"
#include "accelerate/prepared/shared.hpp"

namespace torch::jit {
struct Module;
}

namespace accelerate::prepared {

struct ModelOptions {
  gradient::EngineOptions engine{};
  /// Rank 0's buffers (BatchNorm's statistics) go to all ranks at each synchronised training forward, as in PyTorch.
  bool broadcast_buffers = true;
  /// For evaluation only: moved to the device, never reduced.
  bool evaluation_mode = false;
};

/// What is the same for every type of module: its tensors, its engine and whether its next backward is synchronised.
class ModelCore {
 public:
  ModelCore(std::shared_ptr<Shared> shared, const void* identity, std::vector<gradient::NamedTensor> parameters,
            std::vector<gradient::NamedTensor> buffers, const ModelOptions& options);

  /// Before every prepared forward: fixes whether the backward that follows is reduced (PyTorch's rule: no_sync counts
  /// where it is open at the forward), and broadcasts the buffers if it is.
  void before_forward(bool training);

  /// Whether this is the module at that address with those parameters: preparing it again gives this object.
  [[nodiscard]] bool is(const void* identity, const std::vector<gradient::NamedTensor>& parameters) const;
  [[nodiscard]] const void* identity() const { return identity_; }
  [[nodiscard]] const std::vector<gradient::NamedTensor>& parameters() const { return parameters_; }
  [[nodiscard]] const std::vector<gradient::NamedTensor>& buffers() const { return buffers_; }
  /// Null on one rank, for evaluation and where nothing needs a gradient.
  [[nodiscard]] gradient::Engine* engine() const { return engine_.get(); }

  /// Null where buffers are not broadcast.
  [[nodiscard]] gradient::BufferBroadcast* buffer_broadcast() const { return buffer_broadcast_.get(); }

  void open_no_sync() { ++no_sync_; }
  void close_no_sync() { --no_sync_; }
  [[nodiscard]] bool synchronises() const { return no_sync_ == 0; }

 private:
  std::shared_ptr<Shared> shared_;
  const void* identity_;
  std::vector<gradient::NamedTensor> parameters_, buffers_;
  std::unique_ptr<gradient::BufferBroadcast> buffer_broadcast_;
  std::unique_ptr<gradient::Engine> engine_;
  int64_t no_sync_ = 0;
};

/// The flat gradients that hold exactly these parameters' gradients, where one model's engine does; else nothing.
std::optional<std::vector<at::Tensor>> whole_buckets(const std::vector<std::shared_ptr<ModelCore>>& models,
                                                     const std::vector<at::Tensor>& parameters);

/// The models that are reduced, as a join takes them.
std::vector<gradient::JoinModel> join_models(const std::vector<std::shared_ptr<ModelCore>>& models);

/// A handle: copies refer to the same prepared model.
///
/// `model(x)` runs the module's forward. `model->` is the module itself: gradients of what runs through it are reduced
/// all the same, but buffers are broadcast, and no_sync is noticed, by model(x) and model.forward(x) only.
template <typename Module>
class PreparedModel {
 public:
  PreparedModel(std::shared_ptr<Module> module, std::shared_ptr<ModelCore> core)
      : module_(std::move(module)), core_(std::move(core)) {}

  template <typename... Args>
  decltype(auto) operator()(Args&&... args) const {
    return forward(std::forward<Args>(args)...);
  }
  template <typename... Args>
  decltype(auto) forward(Args&&... args) const {
    core_->before_forward(module_->is_training());
    return module_->forward(std::forward<Args>(args)...);
  }

  /// TorchScript takes its inputs as a list: model({x}).
  c10::IValue operator()(std::vector<c10::IValue> inputs) const requires std::same_as<Module, torch::jit::Module> {
    return forward(std::move(inputs));
  }
  c10::IValue forward(std::vector<c10::IValue> inputs) const requires std::same_as<Module, torch::jit::Module> {
    core_->before_forward(module_->is_training());
    return module_->forward(std::move(inputs));
  }

  Module* operator->() const { return module_.get(); }
  Module& operator*() const { return *module_; }
  /// The module that was given to prepare().
  [[nodiscard]] const std::shared_ptr<Module>& unwrap() const { return module_; }
  [[nodiscard]] ModelCore& core() const { return *core_; }
  [[nodiscard]] const std::shared_ptr<ModelCore>& core_ptr() const { return core_; }

  [[nodiscard]] std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> list;
    for (const auto& parameter : core_->parameters()) list.push_back(parameter.tensor);
    return list;
  }
  void train(bool on = true) const { module_->train(on); }
  void eval() const { module_->eval(); }

  friend bool operator==(const PreparedModel& a, const PreparedModel& b) { return a.core_ == b.core_; }

 private:
  std::shared_ptr<Module> module_;
  std::shared_ptr<ModelCore> core_;
};

}  // namespace accelerate::prepared
