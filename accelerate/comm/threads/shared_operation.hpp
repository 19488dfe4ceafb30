// SPDX-License-Identifier: Apache-2.0
// One operation of the threads backend. All ranks contribute their tensors. It is executed as tasks with results that
// do not depend on the executing thread. Private.
#pragma once

#include <cstdint>
#include <cstring>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "accelerate/comm/core/bytes.hpp"
#include "accelerate/comm/core/connection.hpp"
#include "accelerate/comm/core/reduce_op.hpp"

namespace accelerate::comm {

inline void copy_bytes(const at::Tensor& to, int64_t to_byte, const at::Tensor& from, int64_t from_byte,
                       int64_t count) {
  if (count > 0) std::memmove(at_byte(to, to_byte), at_byte(from, from_byte), static_cast<size_t>(count));
}

/// Contribution of one rank to an operation.
struct Contribution {
  std::vector<at::Tensor> outputs{};
  std::vector<at::Tensor> inputs{};
  std::vector<int64_t> output_rows{};  ///< only for all-to-all
  std::vector<int64_t> input_rows{};
  std::optional<CollectiveFingerprint> signature{};
};

struct SharedOperation {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  ReduceOp op = ReduceOp::sum;
  size_t root = 0;
  Agreement agreement = Agreement::operation_only;
  bool was_announced = false;  // by the first rank that joined
  std::vector<std::optional<Contribution>> ranks;
  size_t arrived = 0;
  size_t tasks = 0;
  size_t begun = 0;
  size_t ended = 0;
  std::exception_ptr error;
  std::exception_ptr differs;  // mismatch between calls that were not all announced

  [[nodiscard]] bool complete() const { return arrived == ranks.size(); }
  [[nodiscard]] bool over() const { return error || (complete() && ended == tasks); }
  Contribution& of(size_t rank) { return *ranks[rank]; }

  /// All ranks have joined: validates the contributions and counts the tasks. Sets `error` on a mismatch.
  void plan(std::span<const int64_t> job_ranks);
  void execute(size_t task);
  /// All tasks are complete: releases each tensor to its rank before that rank continues.
  void release_tensors();

 private:
  /// Validates calls through c10d's handle, which are not announced. Returns nothing if the tensors match.
  std::optional<std::string> validate_contributions(std::span<const int64_t> job_ranks);
  void reduce_chunk(size_t task);
  void reduce_rows(size_t rank);
  void exchange(size_t rank);
  /// Bytes that rank `from` sends to rank `to` in an all-to-all.
  int64_t bytes_between(size_t from, size_t to);
};

}  // namespace accelerate::comm
