// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/loader.hpp"

#include <string>

#include "accelerate/base/log.hpp"

namespace accelerate::prepared {

uint64_t seed_of_rank_0(uint64_t seed, const comm::Group& group) {
  return std::stoull(group.broadcast_bytes(std::to_string(seed)));
}

void warn_of_no_batch(const Place& place) {
  base::log_once(base::LogLevel::warning, place,
                 "loader: this rank has no batch in a whole pass; its data are empty, or fewer than the ranks");
}

}  // namespace accelerate::prepared
