// SPDX-License-Identifier: Apache-2.0
// Reductions. Contracts: comm/group.hpp. Private.
#pragma once

#include "accelerate/comm/core/group_core.hpp"

namespace accelerate::comm {

void all_reduce(const GroupPtr& group, const at::Tensor& tensor, ReduceOp op);
PendingPtr all_reduce_async(const GroupPtr& group, const at::Tensor& tensor, ReduceOp op, Execution execution);
void reduce(const GroupPtr& group, const at::Tensor& tensor, ReduceOp op, int64_t root);
at::Tensor reduce_scatter(const GroupPtr& group, const at::Tensor& input, ReduceOp op);
PendingPtr reduce_scatter_async(const GroupPtr& group, const at::Tensor& output, const at::Tensor& input, ReduceOp op);

}  // namespace accelerate::comm
