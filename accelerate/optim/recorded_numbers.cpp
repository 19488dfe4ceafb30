// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/recorded_numbers.hpp"

#include <ATen/core/grad_mode.h>

#include <bit>

namespace accelerate::optim {

void RecordedNumbers::ended() {
  for (Entry& entry : entries_) entry.behind = entry.count(0) - entry.step;
}

void RecordedNumbers::count(int64_t steps) const {
  for (const Entry& entry : entries_) entry.count(steps);
}

void RecordedNumbers::tell_device() const {
  const at::NoGradGuard no_grad;
  for (const Entry& entry : entries_) {
    entry.rate_on_device.fill_(entry.rate());
    entry.count_on_device.fill_(static_cast<double>(entry.count(0) - entry.behind));
  }
}

void Fingerprint::add(double part) { add(std::bit_cast<uint64_t>(part)); }

void Fingerprint::add(const at::Tensor& tensor) {
  add(static_cast<const void*>(tensor.unsafeGetTensorImpl()));
  if (!tensor.defined() || !tensor.has_storage()) return;
  add(tensor.storage().data());
  add(static_cast<uint64_t>(tensor.storage_offset()));
}

}  // namespace accelerate::optim
