// SPDX-License-Identifier: Apache-2.0
#include "tests/stand_in/collective_meeting.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <functional>
#include <utility>

namespace stand_in {
namespace {

using c10d::OpType;
using Parts = std::vector<std::optional<Part>>;

std::string describe_part(const Part& part) {
  const auto& tensors = part.inputs.empty() ? part.outputs : part.inputs;
  if (tensors.empty()) return c10d::opTypeToString(part.type);
  return fmt::format("{} of {} {}", c10d::opTypeToString(part.type), tensors[0].numel(),
                     c10::toString(tensors[0].scalar_type()));
}

/// Row sums may differ for operations that exchange rows; all other properties must be equal on all ranks.
void check_equal_parts(const Parts& parts) {
  const auto& first = *parts[0];
  for (size_t r = 1; r < parts.size(); ++r) {
    const bool sized = first.type == OpType::ALLTOALL_BASE || first.type == OpType::BARRIER;
    const bool equal = parts[r]->type == first.type && parts[r]->op == first.op && parts[r]->root == first.root &&
                       (sized || describe_part(*parts[r]) == describe_part(first));
    TORCH_CHECK_WITH(DistBackendError, equal, "rank 0 calls ", describe_part(first), ", rank ", r, " ",
                     describe_part(*parts[r]));
  }
}

at::Tensor combined(const at::Tensor& a, const at::Tensor& b, c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
      return a.add(b);
    case c10d::ReduceOp::PRODUCT:
      return a.mul(b);
    case c10d::ReduceOp::MIN:
      return at::minimum(a, b);
    case c10d::ReduceOp::MAX:
      return at::maximum(a, b);
    default:
      TORCH_CHECK(false, "standin: reduces by sum, product, min and max");
  }
}

/// Reduces in rank order, so that every run gives the same bits.
at::Tensor reduced(const Parts& parts, const std::function<at::Tensor(const Part&)>& of) {
  at::Tensor result = of(*parts[0]).clone();
  for (size_t r = 1; r < parts.size(); ++r) result = combined(result, of(*parts[r]), parts[0]->op);
  return result;
}

void reduce_in_place(const Parts& parts, bool to_all) {
  for (size_t i = 0; i < parts[0]->outputs.size(); ++i) {
    const auto result = reduced(parts, [i](const Part& part) { return part.outputs[i]; });
    for (size_t r = 0; r < parts.size(); ++r) {
      if (to_all || static_cast<int64_t>(r) == parts[0]->root) parts[r]->outputs[i].copy_(result);
    }
  }
}

void broadcast(const Parts& parts) {
  const auto root = static_cast<size_t>(parts[0]->root);
  for (size_t r = 0; r < parts.size(); ++r) {
    for (size_t i = 0; r != root && i < parts[r]->outputs.size(); ++i)
      parts[r]->outputs[i].copy_(parts[root]->outputs[i]);
  }
}

/// Rank r's chunk of a tensor of size() equal ones.
at::Tensor chunk(const at::Tensor& whole, size_t r, size_t size) {
  const auto flat = whole.view({-1});
  const int64_t length = flat.numel() / static_cast<int64_t>(size);
  return flat.narrow(0, static_cast<int64_t>(r) * length, length);
}

void all_gather(const Parts& parts) {
  for (const auto& part : parts) {
    for (size_t r = 0; r < parts.size(); ++r) {
      const bool listed = part->type == OpType::ALLGATHER;
      const auto to = listed ? part->outputs[r].view({-1}) : chunk(part->outputs[0], r, parts.size());
      to.copy_(parts[r]->inputs[0].view({-1}));
    }
  }
}

void reduce_scatter(const Parts& parts) {
  const auto size = parts.size();
  for (size_t r = 0; r < size; ++r) {
    const auto rows = reduced(parts, [&](const Part& part) { return chunk(part.inputs[0], r, size); });
    parts[r]->outputs[0].view({-1}).copy_(rows);
  }
}

int64_t rows_of(const at::Tensor& tensor, const std::vector<int64_t>& rows, size_t r, size_t size) {
  return rows.empty() ? tensor.size(0) / static_cast<int64_t>(size) : rows[r];
}

void all_to_all(const Parts& parts) {
  const auto size = parts.size();
  std::vector<int64_t> filled(size);
  for (size_t from = 0; from < size; ++from) {
    int64_t read = 0;
    for (size_t to = 0; to < size; ++to) {
      const int64_t sent = rows_of(parts[from]->inputs[0], parts[from]->input_rows, to, size);
      const int64_t expected = rows_of(parts[to]->outputs[0], parts[to]->output_rows, from, size);
      TORCH_CHECK_WITH(DistBackendError, sent == expected, "rank ", from, " sends ", sent, " rows to rank ", to,
                       ", which expects ", expected);
      parts[to]->outputs[0].narrow(0, filled[to], sent).copy_(parts[from]->inputs[0].narrow(0, read, sent));
      filled[to] += sent;
      read += sent;
    }
  }
}

void carry_out(const Parts& parts) {
  check_equal_parts(parts);
  switch (parts[0]->type) {
    case OpType::ALLREDUCE:
      return reduce_in_place(parts, true);
    case OpType::REDUCE:
      return reduce_in_place(parts, false);
    case OpType::BROADCAST:
      return broadcast(parts);
    case OpType::ALLGATHER:
    case OpType::_ALLGATHER_BASE:
      return all_gather(parts);
    case OpType::_REDUCE_SCATTER_BASE:
      return reduce_scatter(parts);
    case OpType::ALLTOALL_BASE:
      return all_to_all(parts);
    case OpType::BARRIER:
      return;
    default:
      TORCH_CHECK(false, "standin: no collective ", c10d::opTypeToString(parts[0]->type));
  }
}

}  // namespace

void Meeting::meet(int rank, uint64_t number, Part part, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  check_failure();
  Round& round = rounds_[number];
  round.parts.resize(size_);
  round.parts.at(static_cast<size_t>(rank)) = std::move(part);
  if (++round.arrived == size_) {
    try {
      carry_out(round.parts);
    } catch (const std::exception& error) {
      fail(error.what());
    }
    for (auto& each : round.parts) each.reset();
    round.over = true;
    changed_.notify_all();
  } else if (!changed_.wait_for(lock, timeout, [&] { return round.over || failure_; })) {
    fail("a collective's time was up");
  }
  if (++round.left == size_) rounds_.erase(number);
  check_failure();
}

void Meeting::send(int from, int to, int tag, at::Tensor letter) {
  const std::lock_guard lock(mutex_);
  mail_[{from, to, tag}].push_back(std::move(letter));
  changed_.notify_all();
}

void Meeting::receive(int from, int to, int tag, const at::Tensor& into, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  auto& box = mail_[{from, to, tag}];
  if (!changed_.wait_for(lock, timeout, [&] { return !box.empty() || failure_; })) fail("a message's time was up");
  check_failure();
  into.copy_(box.front());
  box.pop_front();
}

void Meeting::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  fail(reason);
}

std::optional<std::string> Meeting::failure() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Meeting::fail(const std::string& reason) {
  if (!failure_) failure_ = reason;
  changed_.notify_all();
}

void Meeting::check_failure() const { TORCH_CHECK_WITH(DistBackendError, !failure_, *failure_); }

namespace {

/// Meetings that not all ranks have joined yet.
struct Open {
  std::mutex mutex;
  std::map<int64_t, std::pair<std::shared_ptr<Meeting>, int>> meetings;  ///< with the number of expected ranks
  int64_t next = 0;
};

Open& open() {
  static Open one;
  return one;
}

}  // namespace

int64_t open_meeting(int size) {
  const std::lock_guard lock(open().mutex);
  open().meetings[open().next] = {std::make_shared<Meeting>(size), size};
  return open().next++;
}

std::shared_ptr<Meeting> join_meeting(int64_t number) {
  const std::lock_guard lock(open().mutex);
  auto& [meeting, missing] = open().meetings.at(number);
  auto joined = meeting;
  if (--missing == 0) open().meetings.erase(number);
  return joined;
}

}  // namespace stand_in
