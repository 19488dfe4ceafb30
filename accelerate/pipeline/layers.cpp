// SPDX-License-Identifier: Apache-2.0
#include "accelerate/pipeline/layers.hpp"

#include <utility>

#include "accelerate/base/error.hpp"

namespace accelerate::pipeline {
namespace {

/// An AnyModule cannot call a Sequential, because forward() of a Sequential is a template.
struct SequentialLayer : torch::nn::SequentialImpl {
  explicit SequentialLayer(torch::nn::SequentialImpl& layers) {
    const auto names = layers.named_children().keys();
    auto name = names.begin();
    for (const auto& layer : layers) push_back(*name++, layer);
  }
  at::Tensor forward(at::Tensor input) { return SequentialImpl::forward(std::move(input)); }
};

void append(torch::nn::Sequential& layers, torch::nn::AnyModule module) {
  if (module.is_empty() || !module.ptr()) {
    base::fail(ErrorKind::usage, {}, "layers", "layer {} is null, must be a module", layers->size());
  }
  layers->push_back(std::move(module));
}

}  // namespace

Layer::Layer(const std::shared_ptr<torch::nn::SequentialImpl>& layers) {
  if (layers) module_ = torch::nn::AnyModule(std::make_shared<SequentialLayer>(*layers));
}

Layers::Layers(std::initializer_list<Layer> layers) {
  for (const Layer& layer : layers) append(layers_, layer.module());
}

Layers::Layers(std::vector<torch::nn::AnyModule> layers) {
  for (auto& module : layers) append(layers_, std::move(module));  // the caller's vector keeps no layers
}

}  // namespace accelerate::pipeline
