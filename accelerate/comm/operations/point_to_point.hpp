// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks. Contracts: comm/group.hpp. Private.
#pragma once

#include "accelerate/comm/core/group_core.hpp"

namespace accelerate::comm {

void send(const GroupPtr& group, const at::Tensor& tensor, int64_t to, int64_t tag);
void recv(const GroupPtr& group, const at::Tensor& tensor, int64_t from, int64_t tag);
PendingPtr send_async(const GroupPtr& group, const at::Tensor& tensor, int64_t to, int64_t tag);
PendingPtr recv_async(const GroupPtr& group, const at::Tensor& tensor, int64_t from, int64_t tag);

}  // namespace accelerate::comm
