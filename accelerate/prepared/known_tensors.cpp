// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/known_tensors.hpp"

#include <utility>

#include "accelerate/gradient/same_everywhere.hpp"
#include "accelerate/prepared/model.hpp"

namespace accelerate::prepared {
namespace {

device::KnownTensor known(const gradient::NamedTensor& tensor) {
  return {.text = gradient::describe(tensor, "tensor"), .bytes = static_cast<int64_t>(tensor.tensor.nbytes())};
}

}  // namespace

std::vector<device::KnownTensor> known_tensors(Shared& shared) {
  std::vector<device::KnownTensor> all;
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    for (auto& tensor : model.known_tensors()) {
      if (model.index() > 0) tensor.text += " of " + model.name();
      all.push_back(std::move(tensor));
    }
  }
  return all;
}

std::vector<device::KnownTensor> ModelCore::known_tensors() const {
  std::vector<device::KnownTensor> all;
  for (const auto& parameter : parameters_) {
    all.push_back(known(parameter));
    const at::Tensor& gradient = parameter.tensor.grad();
    if (gradient.defined()) all.push_back(known({"gradient of " + parameter.name, gradient}));
  }
  for (const auto& buffer : buffers_) all.push_back(known(buffer));
  return all;
}

}  // namespace accelerate::prepared
