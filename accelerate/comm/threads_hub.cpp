// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/threads_hub.hpp"

#include <algorithm>

namespace accelerate::comm {

void Hub::leave(size_t rank, const std::string& why) {
  std::vector<std::pair<std::shared_ptr<Hub>, size_t>> below;
  {
    const std::lock_guard lock(mutex);
    if (!left[rank]) left[rank] = why;
    for (const auto& [name, part] : parts) {
      const auto& members = members_of_parts[name];
      const auto at = std::find(members.begin(), members.end(), static_cast<int64_t>(rank));
      if (at != members.end()) below.emplace_back(part, static_cast<size_t>(at - members.begin()));
    }
    changed.notify_all();
  }
  for (const auto& [part, part_rank] : below) part->leave(part_rank, why);
}

std::shared_ptr<Slot> Hub::put(size_t rank, c10d::OpType type, ReduceOp op, size_t root, Agreement agreement,
                               Contribution mine) {
  const std::lock_guard lock(mutex);
  const uint64_t number = next[rank]++;
  auto& slot = slots[number];
  if (!slot) {
    slot = std::make_shared<Slot>();
    slot->type = type;
    slot->op = op;
    slot->root = root;
    slot->agreement = agreement;
    slot->ranks.resize(size);
  }
  if (slot->type != type && !slot->error) {
    slot->error = std::make_exception_ptr(PeerLost(fmt::format(
        "another rank calls {} here, this one {}", c10d::opTypeToString(slot->type), c10d::opTypeToString(type))));
  }
  slot->ranks[rank] = std::move(mine);
  auto kept = slot;
  if (++slot->arrived == size) {
    kept->plan(labels);
    slots.erase(number);
  }
  changed.notify_all();
  return kept;
}

bool Hub::help(Slot& slot) {
  std::unique_lock lock(mutex);
  while (slot.complete() && !slot.error && slot.begun < slot.tasks) {
    const size_t task = slot.begun++;
    lock.unlock();
    std::exception_ptr error;
    try {
      slot.carry_out(task);
    } catch (...) {
      error = std::current_exception();  // the others wait for this task too
    }
    lock.lock();
    if (!slot.error) slot.error = std::move(error);
    if (++slot.ended == slot.tasks) slot.let_go();
    if (slot.over()) changed.notify_all();
  }
  return slot.over();
}

void Hub::give_up_when_someone_left(Slot& slot, size_t rank) const {
  for (size_t r = 0; r < size; ++r) {
    if (r == rank || slot.ranks[r] || !left[r]) continue;
    throw PeerLost(fmt::format("rank {} {}", labels[r], *left[r]));
  }
}

void Hub::finish(Slot& slot, size_t rank, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  {
    std::unique_lock lock(mutex);
    while (!slot.complete() && !slot.error) {
      give_up_when_someone_left(slot, rank);
      const bool bounded = timeout > std::chrono::milliseconds(0);
      if (!bounded) {
        changed.wait(lock);
      } else if (changed.wait_until(lock, deadline) == std::cv_status::timeout && !slot.complete() && !slot.error) {
        std::vector<int64_t> missing;
        for (size_t r = 0; r < size; ++r) {
          if (!slot.ranks[r]) missing.push_back(static_cast<int64_t>(r));
        }
        throw DeadlinePassed(std::move(missing));
      }
    }
  }
  help(slot);
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return slot.over(); });
  if (slot.error) std::rethrow_exception(slot.error);
}

}  // namespace accelerate::comm
