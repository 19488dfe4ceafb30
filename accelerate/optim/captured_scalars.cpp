// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/captured_scalars.hpp"

#include <ATen/core/grad_mode.h>

#include <bit>

namespace accelerate::optim {

void CapturedScalars::ended() {
  for (Entry& entry : entries_) entry.behind = entry.count(0) - entry.step;
}

void CapturedScalars::count(int64_t steps) const {
  for (const Entry& entry : entries_) entry.count(steps);
}

void CapturedScalars::upload_to_device() const {
  const at::NoGradGuard no_grad;
  for (const Entry& entry : entries_) {
    entry.device_rate_scalar.fill_(entry.rate());
    entry.device_count_scalar.fill_(static_cast<double>(entry.count(0) - entry.behind));
  }
}

void CaptureFingerprint::add(double part) { add(std::bit_cast<uint64_t>(part)); }

void CaptureFingerprint::add(const at::Tensor& tensor) {
  add(static_cast<const void*>(tensor.unsafeGetTensorImpl()));
  if (!tensor.defined() || !tensor.has_storage()) return;
  add(tensor.storage().data());
  add(static_cast<uint64_t>(tensor.storage_offset()));
}

}  // namespace accelerate::optim
