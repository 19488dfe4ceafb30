// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/threads/threads_group.hpp"

#include <algorithm>

#include "accelerate/comm/core/wire_format.hpp"

namespace accelerate::comm {
namespace {

/// Returns null if this rank calls the same operation.
std::exception_ptr other_call(const SharedOperation& operation, c10d::OpType type, ReduceOp op, size_t root) {
  if (operation.type != type) {
    return std::make_exception_ptr(PeerLost(fmt::format(
        "another rank calls {} here, this one {}", c10d::opTypeToString(operation.type), c10d::opTypeToString(type))));
  }
  if (operation.op != op) {
    return std::make_exception_ptr(PeerLost(fmt::format("another rank reduces by {} here, this one by {}",
                                                        reduce_op_name(operation.op), reduce_op_name(op))));
  }
  if (operation.root == root) return nullptr;
  return std::make_exception_ptr(
      PeerLost(fmt::format("another rank's root is {} here, this one's is {}", operation.root, root)));
}

}  // namespace

void ThreadsGroup::mark_left(size_t rank, const std::string& reason) {
  std::vector<std::pair<std::shared_ptr<ThreadsGroup>, size_t>> below;
  {
    const std::lock_guard lock(mutex);
    if (!left[rank]) left[rank] = reason;
    for (const auto& [name, part] : parts) {
      const auto& members = members_of_parts[name];
      const auto at = std::find(members.begin(), members.end(), static_cast<int64_t>(rank));
      if (at != members.end()) below.emplace_back(part, static_cast<size_t>(at - members.begin()));
    }
    changed.notify_all();
  }
  for (const auto& [part, part_rank] : below) part->mark_left(part_rank, reason);
}

std::shared_ptr<SharedOperation> ThreadsGroup::put(size_t rank, c10d::OpType type, ReduceOp op, size_t root,
                                                   Agreement agreement, Contribution mine) {
  const std::lock_guard lock(mutex);
  const uint64_t number = next[rank]++;
  auto& operation = operations[number];
  if (!operation) {
    operation = std::make_shared<SharedOperation>();
    operation->type = type;
    operation->op = op;
    operation->root = root;
    operation->agreement = agreement;
    operation->was_announced = mine.signature.has_value();
    operation->ranks.resize(size);
  }
  // If all calls were announced, they are compared after all ranks have joined, with a better message.
  const bool both_announced = mine.signature && operation->was_announced;
  auto& differs = both_announced ? operation->differs : operation->error;
  if (!differs) differs = other_call(*operation, type, op, root);
  operation->ranks[rank] = std::move(mine);
  auto kept = operation;
  if (++operation->arrived == size) {
    kept->plan(job_ranks);
    operations.erase(number);
  }
  changed.notify_all();
  return kept;
}

bool ThreadsGroup::run_one_task(SharedOperation& operation) {
  std::unique_lock lock(mutex);
  while (operation.complete() && !operation.error && operation.begun < operation.tasks) {
    const size_t task = operation.begun++;
    lock.unlock();
    std::exception_ptr error;
    try {
      operation.execute(task);
    } catch (...) {
      error = std::current_exception();  // stored for all ranks, because they also wait for this task
    }
    lock.lock();
    if (!operation.error) operation.error = std::move(error);
    if (++operation.ended == operation.tasks) operation.release_tensors();
    if (operation.over()) changed.notify_all();
  }
  return operation.over();
}

void ThreadsGroup::abort_if_peer_left(SharedOperation& operation, size_t rank) const {
  for (size_t r = 0; r < size; ++r) {
    if (r == rank || operation.ranks[r] || !left[r]) continue;
    throw PeerLost(fmt::format("rank {} {}", job_ranks[r], *left[r]));
  }
}

void ThreadsGroup::wait_and_help(SharedOperation& operation, size_t rank, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  {
    std::unique_lock lock(mutex);
    while (!operation.complete() && !operation.error) {
      abort_if_peer_left(operation, rank);
      const bool bounded = timeout > std::chrono::milliseconds(0);
      if (!bounded) {
        changed.wait(lock);
      } else if (changed.wait_until(lock, deadline) == std::cv_status::timeout && !operation.complete() &&
                 !operation.error) {
        std::vector<int64_t> missing;
        for (size_t r = 0; r < size; ++r) {
          if (!operation.ranks[r]) missing.push_back(static_cast<int64_t>(r));
        }
        throw DeadlineExceeded(std::move(missing));
      }
    }
  }
  run_one_task(operation);
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return operation.over(); });
  if (operation.error) std::rethrow_exception(operation.error);
}

}  // namespace accelerate::comm
