// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/loader.hpp"

#include <string>

namespace accelerate::prepared {

uint64_t seed_of_rank_0(uint64_t seed, const comm::Group& group) {
  return std::stoull(group.broadcast_bytes(std::to_string(seed)));
}

}  // namespace accelerate::prepared
