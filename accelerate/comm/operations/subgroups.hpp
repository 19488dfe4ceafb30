// SPDX-License-Identifier: Apache-2.0
// Sub-groups, duplicates and the barrier. Contracts: comm/group.hpp. Private.
#pragma once

#include <cstdint>
#include <string_view>

#include "accelerate/comm/core/group_core.hpp"

namespace accelerate::comm {

GroupPtr split(const GroupPtr& group, int64_t color, std::string_view ranks_name);
GroupPtr duplicate(const GroupPtr& group);
void barrier(const GroupPtr& group);

}  // namespace accelerate::comm
