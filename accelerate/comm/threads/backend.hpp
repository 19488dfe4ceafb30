// SPDX-License-Identifier: Apache-2.0
// Backend for ranks that are threads of one process. Private; run_threads() is the public interface.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "accelerate/comm/core/connection.hpp"

namespace accelerate::comm {

struct ThreadsGroup;

class ThreadsWorld {
 public:
  explicit ThreadsWorld(int64_t size);
  [[nodiscard]] std::shared_ptr<Connection> connection(int64_t rank) const;
  /// The rank will join no further operation. Ranks that wait for it, now or later, fail with "rank 2 <reason>".
  void mark_left(int64_t rank, const std::string& reason) const;

 private:
  std::shared_ptr<ThreadsGroup> group_;
};

}  // namespace accelerate::comm
