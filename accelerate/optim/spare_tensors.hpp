// SPDX-License-Identifier: Apache-2.0
// Private: the tensors of a replaced optimizer state. The new state uses their memory again.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>

namespace accelerate::optim {

/// Tensors by the name of their field.
using SpareTensors = std::unordered_map<std::string_view, at::Tensor>;

/// Returns the tensors of a state; none for a null pointer and for a state of another type.
template <typename Fields>
SpareTensors spare_tensors_of(std::unique_ptr<torch::optim::OptimizerParamState> state) {
  SpareTensors spare;
  auto* const known = dynamic_cast<typename Fields::State*>(state.get());
  if (known == nullptr) return spare;
  Fields::state(*known, [&](const char* name, auto& field) {
    if constexpr (std::is_same_v<decltype(field), at::Tensor&>) spare.emplace(name, std::move(field));
  });
  return spare;
}

/// Takes the tensor of this name if it has the wanted form and nothing else refers to it or to its memory. Otherwise
/// frees it and returns an undefined tensor.
[[nodiscard]] at::Tensor take_spare(SpareTensors& spare, std::string_view name, at::IntArrayRef sizes,
                                    at::IntArrayRef strides, const at::TensorOptions& options);

}  // namespace accelerate::optim
