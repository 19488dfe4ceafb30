// SPDX-License-Identifier: Apache-2.0
// Private: the collectives of tensor parallelism along any dimension, without autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "accelerate/comm/group.hpp"

namespace accelerate::nn {

/// Returns the size of one of equal parts.
///
/// \param call  Name of the user's operation, for the message.
/// \param what  Name of the size, for the message.
/// \throws Error (usage) with both numbers if the size is not divisible by the number of ranks.
int64_t part_size(std::string_view call, std::string_view what, int64_t size, const comm::Group& group);

/// Returns the dimension as a number from 0 to tensor.dim() - 1.
/// \throws Error (usage) if the tensor has no such dimension.
int64_t checked_dim(std::string_view call, const at::Tensor& tensor, int64_t dim, const comm::Group& group);

/// Replaces the tensor by the sum over all ranks.
void add_up(const at::Tensor& tensor, const comm::Group& group);
/// Returns this rank's part of the tensor along the dimension, as a view.
at::Tensor own_part(const at::Tensor& tensor, int64_t dim, const comm::Group& group);
/// Returns the equal parts of all ranks, joined along the dimension in rank order.
at::Tensor joined_parts(const at::Tensor& part, int64_t dim, const comm::Group& group);

/// A sum of which each rank receives its part along a dimension.
class PartOfSum {
 public:
  /// Starts the reduce-scatter.
  PartOfSum(const at::Tensor& tensor, int64_t dim, const comm::Group& group);
  /// Waits for the part, and returns it.
  at::Tensor wait();

 private:
  comm::Group group_;
  int64_t dim_;
  at::Tensor input_, output_;  // with the dimension in front
  comm::Pending pending_;
};

/// Waits under the name of tensor parallelism, because the user never called the collective.
void wait_for(comm::Pending& pending, const comm::Group& group);

}  // namespace accelerate::nn
