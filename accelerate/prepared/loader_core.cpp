// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/loader_core.hpp"

#include <string>

#include "accelerate/comm/error_context.hpp"

namespace accelerate::prepared {

uint64_t seed_of_rank_0(uint64_t seed, const comm::Group& group) {
  return comm::with_operation_context("prepare", "the loader's seed is not made equal", group.place(),
                                      [&] { return std::stoull(group.broadcast_bytes(std::to_string(seed))); });
}

}  // namespace accelerate::prepared
