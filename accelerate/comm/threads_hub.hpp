// SPDX-License-Identifier: Apache-2.0
// The threads backend: where the ranks of one group meet. Whoever waits for an operation helps to carry it out.
// Private.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "accelerate/comm/threads_slot.hpp"

namespace accelerate::comm {

/// What the ranks of one group share.
struct Hub {
  explicit Hub(std::vector<int64_t> job_ranks)
      : size(job_ranks.size()), labels(std::move(job_ranks)), left(size), next(size, 0) {}

  const size_t size;
  const std::vector<int64_t> labels;  ///< the ranks' numbers in the job, for messages
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::optional<std::string>> left;  ///< why a rank will come to no operation any more
  std::vector<uint64_t> next;                    ///< the operation that each rank begins next
  std::map<uint64_t, std::shared_ptr<Slot>> slots;
  std::map<std::tuple<size_t, size_t, int>, std::deque<at::Tensor>> mail;  ///< from, to, tag
  std::map<std::string, std::shared_ptr<Hub>> parts;
  std::map<std::string, std::vector<int64_t>> members_of_parts;

  void leave(size_t rank, const std::string& why);
  std::shared_ptr<Slot> put(size_t rank, c10d::OpType type, ReduceOp op, size_t root, Agreement agreement,
                            Contribution mine);
  /// Until the slot is over, helping. Throws as c10d::Work does.
  void finish(Slot& slot, size_t rank, std::chrono::milliseconds timeout);
  bool help(Slot& slot);

 private:
  void give_up_when_someone_left(Slot& slot, size_t rank) const;
};

}  // namespace accelerate::comm
