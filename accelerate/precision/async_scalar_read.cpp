// SPDX-License-Identifier: Apache-2.0
#include "accelerate/precision/async_scalar_read.hpp"

#include "accelerate/device/streams.hpp"

namespace accelerate::precision {

AsyncScalarRead::AsyncScalarRead(const at::Tensor& numbers) : host_(numbers) {
  if (numbers.is_cpu()) return;
  host_ = numbers.to(at::kCPU, at::kFloat, /*non_blocking=*/true);  // asynchronous copy to pinned memory
  copied_.emplace(device::event_on(device::current_stream(numbers.device())));
}

bool AsyncScalarRead::arrived() const { return !copied_ || copied_->query(); }

void AsyncScalarRead::wait() const {
  if (!arrived()) copied_->synchronize();
}

}  // namespace accelerate::precision
