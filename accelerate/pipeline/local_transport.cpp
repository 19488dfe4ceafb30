// SPDX-License-Identifier: Apache-2.0
#include "accelerate/pipeline/local_transport.hpp"

#include <c10/core/ScalarType.h>

namespace accelerate::pipeline {

StepHeader LocalTransport::begin(StepHeader own, const at::Tensor&) {
  arrived_.clear();  // an earlier step may have ended with an exception
  first_trainable_ = own.first_trainable;
  return own;
}

bool LocalTransport::sends_gradient(int64_t stage, at::ScalarType dtype) const {
  return stage > 0 && first_trainable_ < stage && (at::isFloatingType(dtype) || at::isComplexType(dtype));
}

void LocalTransport::send(const Action& action, const at::Tensor& tensor) {
  const bool activation = action.kind == ActionKind::send_activation;
  const auto kind = activation ? ActionKind::receive_activation : ActionKind::receive_gradient;
  const int64_t target = action.stage + (activation ? 1 : -1);
  const auto device = devices_.at(static_cast<size_t>(target));
  arrived_[{kind, target, action.micro_batch}] = device ? tensor.to(*device) : tensor;
}

at::Tensor LocalTransport::take(ActionKind kind, int64_t stage, int64_t micro_batch) {
  const auto found = arrived_.find({kind, stage, micro_batch});
  return found == arrived_.end() ? at::Tensor() : arrived_.extract(found).mapped();
}

}  // namespace accelerate::pipeline
