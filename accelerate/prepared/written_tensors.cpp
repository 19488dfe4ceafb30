// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/written_tensors.hpp"

#include <torch/optim/optimizer.h>

#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/optimizer.hpp"
#include "accelerate/prepared/shared.hpp"

namespace accelerate::prepared {
namespace {

int64_t version_counter(const at::Tensor& tensor) { return tensor.is_inference() ? 0 : tensor._version(); }

}  // namespace

WrittenTensors::WrittenTensors(Shared& shared) {
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
  if (seen_.insert(tensor.unsafeGetTensorImpl()).second) before_.emplace_back(tensor, version_counter(tensor));
}

std::vector<at::Tensor> WrittenTensors::list() const {
  std::vector<at::Tensor> written;
  for (const auto& [tensor, version] : before_) {
    if (version_counter(tensor) != version) written.push_back(tensor);
  }
  return written;
}

void count_writes(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace accelerate::prepared
