// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/parallel_for_samples.hpp"

#include "accelerate/data/workers.hpp"
#include "accelerate/device/parallel_for.hpp"

namespace accelerate::data {

void parallel_for_samples(const at::Tensor& numbers, int64_t grain, c10::function_ref<void(int64_t, int64_t)> part) {
  if (get_worker_info()) return part(0, numbers.numel());
  device::parallel_for(numbers.numel(), grain, part);
}

}  // namespace accelerate::data
