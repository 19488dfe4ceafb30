// SPDX-License-Identifier: Apache-2.0
// Parameters that stages on different ranks share, such as the embedding that is also the output layer. Private.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "accelerate/comm/group.hpp"

namespace accelerate::pipeline {

struct TiedParameter {
  std::string name{};            ///< of its first use: "0.weight"
  at::Tensor tensor{};           ///< this rank's copy
  std::vector<int64_t> ranks{};  ///< ranks that use it, in ascending order, at least two
};

/// Every rank of a parameter has its own copy. After a step each copy has the sum of the gradients of all of them, so
/// that equal optimizers keep the copies equal.
class TiedParameters {
 public:
  /// \param tied  All tied parameters of the model, in the same order on all ranks.
  TiedParameters(comm::Group group, int64_t tag, std::vector<TiedParameter> tied);

  /// Copies the values of the first rank of each parameter to its other ranks.
  void share_values() const;
  /// Sets gradients of earlier steps aside, because these are sums already.
  void begin_step();
  /// Adds the gradients of this step over the ranks, in rank order, and then to those of earlier steps.
  /// \param gradient_of  Returns the gradient of a parameter that is not in Tensor::grad(), in which the sum is
  /// written;
  ///                     undefined if it is not summed in this step. Empty if gradients are in Tensor::grad().
  void finish_step(const std::function<at::Tensor(const at::Tensor& parameter)>& gradient_of);
  /// False if the parameter is also on a lower rank, which then counts it in norms.
  [[nodiscard]] bool counts_here(const at::Tensor& parameter) const;

 private:
  [[nodiscard]] std::vector<at::Tensor> exchange(const TiedParameter& tied, const at::Tensor& mine) const;
  [[nodiscard]] at::Tensor sum_over_ranks(const TiedParameter& tied, const at::Tensor& own) const;

  comm::Group group_;
  int64_t tag_;
  std::vector<TiedParameter> tied_;      ///< those of this rank
  std::vector<at::Tensor> set_aside_{};  ///< gradients of earlier steps; undefined if there are none
};

}  // namespace accelerate::pipeline
