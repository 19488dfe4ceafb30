// SPDX-License-Identifier: Apache-2.0
// The threads backend: shared state of the ranks of one group. A rank that waits for an operation helps to execute it.
// Private.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <tuple>
#include <vector>

#include "accelerate/comm/threads/shared_operation.hpp"

namespace accelerate::comm {

/// Messages from one rank to another with one tag. Receive i gets message i, whichever receive is awaited first.
struct Letters {
  std::map<uint64_t, at::Tensor> waiting;  ///< sent messages that have not been taken, by their number
  uint64_t sent = 0;
  uint64_t receives = 0;
};

/// Shared state of the ranks of one group.
struct ThreadsGroup {
  explicit ThreadsGroup(std::vector<int64_t> ranks_in_job)
      : size(ranks_in_job.size()), job_ranks(std::move(ranks_in_job)), left(size), next(size, 0) {}

  const size_t size;
  const std::vector<int64_t> job_ranks;  ///< ranks of the job, for messages
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::optional<std::string>> left;  ///< reason why a rank will join no further operation
  std::vector<uint64_t> next;                    ///< number of each rank's next operation
  std::map<uint64_t, std::shared_ptr<SharedOperation>> operations;
  std::map<std::tuple<size_t, size_t, int>, Letters> mail;  ///< from, to, tag
  const c10::intrusive_ptr<c10d::HashStore> store = c10::make_intrusive<c10d::HashStore>();
  std::map<std::string, std::shared_ptr<ThreadsGroup>> parts;
  std::map<std::string, std::vector<int64_t>> members_of_parts;

  void mark_left(size_t rank, const std::string& reason);
  std::shared_ptr<SharedOperation> put(size_t rank, c10d::OpType type, ReduceOp op, size_t root, Agreement agreement,
                                       Contribution mine);
  /// Waits until the operation is complete and executes tasks meanwhile. \throws as c10d::Work does.
  void wait_and_help(SharedOperation& operation, size_t rank, std::chrono::milliseconds timeout);
  bool run_one_task(SharedOperation& operation);

 private:
  void abort_if_peer_left(SharedOperation& operation, size_t rank) const;
};

}  // namespace accelerate::comm
