// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "accelerate/accelerator.hpp"

namespace accelerate::trainer {

/// A sum of losses that stays on the device until it is read.
class LossSum {
 public:
  void add(const at::Tensor& loss) {
    const at::Tensor value = loss.detach().to(at::kDouble).reshape({});
    sum_ = sum_.defined() ? sum_ + value : value;
    ++count_;
  }
  /// Adds the mean of another sum of this rank as a single value.
  void add_mean_of(const LossSum& other) {
    if (other.count_ > 0) add(other.sum_ / other.count_);
  }
  void add(const LossSum& other) {
    if (other.sum_.defined()) sum_ = sum_.defined() ? sum_ + other.sum_ : other.sum_;
    count_ += other.count_;
  }
  /// Returns the mean over all ranks. Collective; waits for the device.
  [[nodiscard]] double mean(const Accelerator& accelerator) const {
    if (count_ == 0) return 0;
    return accelerator.reduce(sum_, comm::ReduceOp::sum).item<double>() /
           static_cast<double>(count_ * accelerator.num_processes());
  }

 private:
  at::Tensor sum_;
  int64_t count_ = 0;
};

}  // namespace accelerate::trainer
