// SPDX-License-Identifier: Apache-2.0
#include "accelerate/precision/async_scalar_read.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace accelerate::precision {

AsyncScalarRead::AsyncScalarRead(const at::Tensor& numbers) : host_(numbers) {
  if (numbers.is_cpu()) return;
  host_ = numbers.to(at::kCPU, at::kFloat, /*non_blocking=*/true);  // asynchronous copy to pinned memory
  copied_.emplace(numbers.device().type());
  copied_->record(c10::impl::VirtualGuardImpl(numbers.device().type()).getStream(numbers.device()));
}

bool AsyncScalarRead::arrived() const { return !copied_ || copied_->query(); }

void AsyncScalarRead::wait() const {
  if (!arrived()) copied_->synchronize();
}

}  // namespace accelerate::precision
