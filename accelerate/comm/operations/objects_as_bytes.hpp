// SPDX-License-Identifier: Apache-2.0
// Collectives for objects as bytes. Lengths may differ between ranks. Contracts: comm/group.hpp. Private.
#pragma once

#include "accelerate/comm/core/group_core.hpp"

namespace accelerate::comm {

std::vector<std::string> all_gather_bytes(const GroupPtr& group, std::string_view bytes);
std::vector<std::string> gather_bytes(const GroupPtr& group, std::string_view bytes, int64_t root);
std::string broadcast_bytes(const GroupPtr& group, std::string_view bytes, int64_t root);

}  // namespace accelerate::comm
