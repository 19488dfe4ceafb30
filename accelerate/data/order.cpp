// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/order.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randperm.h>

namespace accelerate::data {

at::Tensor epoch_order(int64_t samples, bool shuffle, uint64_t seed, int64_t epoch) {
  const auto options = at::TensorOptions().dtype(at::kLong);
  if (!shuffle) return at::arange(samples, options);
  return at::randperm(samples, at::detail::createCPUGenerator(seed + static_cast<uint64_t>(epoch)), options);
}

}  // namespace accelerate::data
