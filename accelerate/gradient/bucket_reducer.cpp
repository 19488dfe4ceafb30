// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/bucket_reducer.hpp"

#include <algorithm>
#include <utility>

namespace accelerate::gradient {

at::Tensor GradientBucket::same_storage(const at::Tensor& view, const at::Tensor& other) const {
  const int64_t offset = view.storage_offset() - gradients.storage_offset();
  return other.as_strided(view.sizes(), view.strides(), other.storage_offset() + offset);
}

void AllReduce::start(const GradientBucket& bucket, comm::Execution execution) {
  const auto at = static_cast<size_t>(bucket.index);
  under_way_.resize(std::max(under_way_.size(), at + 1));
  under_way_[at] = group_.all_reduce_async(bucket.flat, comm::ReduceOp::sum, execution);
  bytes_communicated_ += static_cast<int64_t>(bucket.flat.nbytes());
}

void AllReduce::finish(const GradientBucket& bucket) {
  std::exchange(under_way_[static_cast<size_t>(bucket.index)], {}).wait();
}

std::unique_ptr<BucketReducer> CommHook::reducer(const comm::Group& group) const {
  return make_ == nullptr ? std::make_unique<AllReduce>(group) : (*make_)(group);
}

}  // namespace accelerate::gradient
