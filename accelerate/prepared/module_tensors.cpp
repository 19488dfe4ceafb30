// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/module_tensors.hpp"

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

namespace accelerate::prepared {
namespace {

template <typename Dict>
std::vector<gradient::NamedTensor> of_dict(const Dict& dict) {
  std::vector<gradient::NamedTensor> list;
  for (const auto& item : dict) list.push_back({item.key(), item.value()});
  return list;
}

template <typename List>
std::vector<gradient::NamedTensor> of_list(const List& tensors) {
  std::vector<gradient::NamedTensor> list;
  for (const auto& item : tensors) list.push_back({item.name, item.value});
  return list;
}

}  // namespace

std::vector<gradient::NamedTensor> named_parameters(const torch::nn::Module& module) {
  return of_dict(module.named_parameters());
}
std::vector<gradient::NamedTensor> named_buffers(const torch::nn::Module& module) {
  return of_dict(module.named_buffers());
}
std::vector<gradient::NamedTensor> named_parameters(const torch::jit::Module& module) {
  return of_list(module.named_parameters());
}
std::vector<gradient::NamedTensor> named_buffers(const torch::jit::Module& module) {
  return of_list(module.named_buffers());
}

}  // namespace accelerate::prepared
