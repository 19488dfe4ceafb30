// SPDX-License-Identifier: Apache-2.0
#include "accelerate/sharding/use_order.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace accelerate::sharding {

void UseOrder::begin_pass() {
  if (is_fixed_) return;
  const std::lock_guard lock(mutex_);
  if (is_fixed_) return;  // by another thread
  order_.clear();
}

void UseOrder::add(int64_t unit) {
  const std::lock_guard lock(mutex_);
  if (std::ranges::find(order_, unit) == order_.end()) order_.push_back(unit);
}

const std::vector<int64_t>& UseOrder::fix(const comm::Group& group, int64_t units) {
  if (is_fixed_) return order_;
  const std::lock_guard lock(mutex_);
  for (int64_t unit = 0; unit < units; ++unit) {
    if (std::ranges::find(order_, unit) == order_.end()) order_.push_back(unit);
  }
  const at::Tensor of_rank_0 = at::empty({units}, at::kLong);
  std::ranges::copy(order_, of_rank_0.mutable_data_ptr<int64_t>());
  group.broadcast(of_rank_0);
  std::copy_n(of_rank_0.const_data_ptr<int64_t>(), units, order_.begin());
  is_fixed_.store(true, std::memory_order_release);
  return order_;
}

}  // namespace accelerate::sharding
