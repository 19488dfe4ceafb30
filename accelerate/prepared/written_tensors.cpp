// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/written_tensors.hpp"

#include <torch/optim/optimizer.h>

#include "accelerate/base/version_counter.hpp"
#include "accelerate/prepared/accelerator_state.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/optimizer.hpp"

namespace accelerate::prepared {

WrittenTensors::WrittenTensors(AcceleratorState& shared) {
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    for (const auto& parameter : model.parameters()) note(parameter.tensor);
    for (const auto& buffer : model.buffers()) note(buffer.tensor);
  }
  for (OptimizerCore& optimizer : shared.registry.of<OptimizerCore>()) {
    for (const auto& group : optimizer.optimizer().param_groups()) {
      for (const at::Tensor& parameter : group.params()) note(parameter);
    }
  }
}

void WrittenTensors::note(const at::Tensor& tensor) {
  if (!seen_.insert(tensor.unsafeGetTensorImpl()).second) return;
  before_.emplace_back(WeakTensor(tensor.getIntrusivePtr()), base::version_of(tensor));
}

std::vector<WeakTensor> WrittenTensors::list() const {
  std::vector<WeakTensor> written;
  for (const auto& [weak, version] : before_) {
    if (auto tensor = weak.lock(); tensor && base::version_of(at::Tensor(std::move(tensor))) != version) {
      written.push_back(weak);
    }
  }
  return written;
}

std::vector<at::Tensor> existing(const std::vector<WeakTensor>& tensors) {
  std::vector<at::Tensor> found;
  for (const WeakTensor& weak : tensors) {
    if (auto tensor = weak.lock()) found.emplace_back(std::move(tensor));
  }
  return found;
}

}  // namespace accelerate::prepared
