// SPDX-License-Identifier: Apache-2.0
// Groups made from a group, and where all its ranks meet. Contracts: comm/group.hpp. Private.
#pragma once

#include "accelerate/comm/core/group_core.hpp"

namespace accelerate::comm {

GroupPtr split(const GroupPtr& group, int64_t color);
GroupPtr duplicate(const GroupPtr& group);
void barrier(const GroupPtr& group);

}  // namespace accelerate::comm
