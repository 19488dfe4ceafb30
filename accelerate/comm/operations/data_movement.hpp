// SPDX-License-Identifier: Apache-2.0
// Operations that move tensors without changing them. Contracts: comm/group.hpp. Private.
#pragma once

#include "accelerate/comm/core/group_core.hpp"

namespace accelerate::comm {

void broadcast(const GroupPtr& group, const at::Tensor& tensor, int64_t root);
PendingPtr broadcast_async(const GroupPtr& group, const at::Tensor& tensor, int64_t root);
at::Tensor all_gather(const GroupPtr& group, const at::Tensor& tensor);
std::vector<at::Tensor> all_gather_list(const GroupPtr& group, const at::Tensor& tensor);
PendingPtr all_gather_async(const GroupPtr& group, const at::Tensor& output, const at::Tensor& input);
std::vector<at::Tensor> gather(const GroupPtr& group, const at::Tensor& tensor, int64_t root);
at::Tensor scatter(const GroupPtr& group, const std::vector<at::Tensor>& tensors, int64_t root);
std::vector<at::Tensor> all_to_all(const GroupPtr& group, const std::vector<at::Tensor>& tensors);

}  // namespace accelerate::comm
