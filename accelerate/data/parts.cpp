// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/parts.hpp"

#include "accelerate/data/workers.hpp"
#include "accelerate/device/in_parts.hpp"

namespace accelerate::data {

void in_parts(const at::Tensor& numbers, int64_t grain, c10::function_ref<void(int64_t, int64_t)> part) {
  if (get_worker_info()) return part(0, numbers.numel());
  device::in_parts(numbers.numel(), grain, part);
}

}  // namespace accelerate::data
