// SPDX-License-Identifier: Apache-2.0
// Checks whether the ranks' tensors match in calls through c10d's handle, which are not announced.
#include <fmt/format.h>

#include "accelerate/comm/threads/shared_operation.hpp"

namespace accelerate::comm {
namespace {

using c10d::OpType;

/// Returns the tensors that must have equal shapes and dtypes on all ranks.
const std::vector<at::Tensor>& part_of(const Contribution& mine) {
  return mine.inputs.empty() ? mine.outputs : mine.inputs;
}

bool equal_layouts(const std::vector<at::Tensor>& one, const std::vector<at::Tensor>& other) {
  if (one.size() != other.size()) return false;
  for (size_t i = 0; i < one.size(); ++i) {
    if (one[i].numel() != other[i].numel() || one[i].scalar_type() != other[i].scalar_type()) return false;
  }
  return true;
}

std::string describe_all(const std::vector<at::Tensor>& tensors) {
  std::string text;
  for (const auto& tensor : tensors) {
    text += (text.empty() ? "" : ", ") + describe_fingerprint(fingerprint_of(Operation::all_reduce, tensor));
  }
  return text.empty() ? "no tensor" : text;
}

int64_t total_bytes(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const auto& tensor : tensors) bytes += byte_count(tensor);
  return bytes;
}

/// Checks the size ratio of a rank's outputs and inputs.
bool shapes_match(OpType type, const Contribution& mine, int64_t ranks) {
  switch (type) {
    case OpType::_ALLGATHER_BASE:
    case OpType::ALLGATHER:
      return total_bytes(mine.outputs) == total_bytes(mine.inputs) * ranks;
    case OpType::_REDUCE_SCATTER_BASE:
      return total_bytes(mine.inputs) == total_bytes(mine.outputs) * ranks;
    default:
      return true;
  }
}

}  // namespace

std::optional<std::string> SharedOperation::validate_contributions(std::span<const int64_t> job_ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (type == OpType::ALLTOALL_BASE) {
      int64_t received = 0;
      int64_t sent = 0;
      for (size_t other = 0; other < ranks.size(); ++other) {
        received += bytes_between(other, rank);
        sent += bytes_between(rank, other);
      }
      const int64_t place = total_bytes(of(rank).outputs);
      if (received != place) {
        return fmt::format("rank {} gets {} bytes, its output has {}", job_ranks[rank], received, place);
      }
      if (sent > total_bytes(of(rank).inputs)) {
        return fmt::format("rank {} sends {} bytes, its input has {}", job_ranks[rank], sent,
                           total_bytes(of(rank).inputs));
      }
      continue;
    }
    if (!equal_layouts(part_of(of(rank)), part_of(of(0)))) {
      return fmt::format("rank {} gives {}, rank {} gives {}; they must be equal", job_ranks[rank],
                         describe_all(part_of(of(rank))), job_ranks[0], describe_all(part_of(of(0))));
    }
    if (!shapes_match(type, of(rank), static_cast<int64_t>(ranks.size()))) {
      return fmt::format("rank {}'s input {} and output {} do not fit together for {} ranks", job_ranks[rank],
                         describe_all(of(rank).inputs), describe_all(of(rank).outputs), ranks.size());
    }
  }
  return std::nullopt;
}

}  // namespace accelerate::comm
