// SPDX-License-Identifier: Apache-2.0
// The layers of a Pipeline: a Sequential, or a list of modules of any types.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/named_any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <initializer_list>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace accelerate::pipeline {

/// A class of modules that can be layers: forward() takes one tensor and returns one tensor.
template <typename Module>
concept LayerModule = requires(Module& module, at::Tensor input) {
  { module.forward(std::move(input)) } -> std::same_as<at::Tensor>;
};

/// One layer of a list: a module holder, a shared pointer to a module, or a torch::nn::AnyModule. A Sequential is one
/// layer, and its modules have the names "0.0.weight", "0.1.weight" ... in the first layer of a list.
class Layer {
 public:
  Layer(torch::nn::AnyModule module) : module_(std::move(module)) {}
  template <typename Module>
  Layer(std::shared_ptr<Module> module) {
    static_assert(LayerModule<Module>, "a layer of a Pipeline needs a forward() that takes and returns one tensor");
    if constexpr (LayerModule<Module>) {
      if (module) module_ = torch::nn::AnyModule(std::move(module));
    }
  }
  Layer(const std::shared_ptr<torch::nn::SequentialImpl>& layers);
  template <typename Module>
  Layer(const torch::nn::ModuleHolder<Module>& holder)
      : Layer(holder.is_empty() ? std::shared_ptr<Module>() : holder.ptr()) {}

  /// Empty if the layer is null.
  [[nodiscard]] const torch::nn::AnyModule& module() const { return module_; }

 private:
  torch::nn::AnyModule module_{};
};

/// The layers of a model in order. Converts from a Sequential, from a list in braces, and from a vector:
///
///   accelerate::nn::Pipeline net(group, {embedding, block, torch::nn::Sequential(norm, head)}, {.micro_batches = 8});
///
///   std::vector<torch::nn::AnyModule> layers{torch::nn::AnyModule(embedding)};
///   for (int64_t i = 0; i < 12; ++i) layers.emplace_back(Block(width));
///   accelerate::nn::Pipeline net(group, std::move(layers));
///
/// A list has the results, and the names of parameters, of a Sequential of the same modules: the position of each
/// module in the list is the first part of its names, as in "0.weight". Modules are shared with the caller.
class Layers {
 public:
  Layers() = default;
  Layers(torch::nn::Sequential layers) : layers_(std::move(layers)) {}
  Layers(std::shared_ptr<torch::nn::SequentialImpl> layers) : layers_(std::move(layers)) {}
  /// \throws Error (usage) if a layer is null. This applies to all lists.
  Layers(std::initializer_list<Layer> layers);
  /// Layers with names, as in `{{"embedding", embedding}, {"head", head}}`.
  Layers(std::initializer_list<torch::nn::NamedAnyModule> layers) : layers_(layers) {}
  Layers(std::vector<torch::nn::AnyModule> layers);
  template <std::same_as<torch::nn::ModuleList> List>
  Layers(const List&) {
    static_assert(!std::same_as<List, torch::nn::ModuleList>,
                  "a ModuleList cannot be a Pipeline, because it stores modules without their forward(): use a "
                  "Sequential, the module holders in braces, or a std::vector<torch::nn::AnyModule>");
  }

  [[nodiscard]] const torch::nn::Sequential& sequential() const { return layers_; }

 private:
  torch::nn::Sequential layers_{};
};

}  // namespace accelerate::pipeline
