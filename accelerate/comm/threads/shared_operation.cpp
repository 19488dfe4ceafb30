// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/threads/shared_operation.hpp"

#include "accelerate/comm/core/elementwise.hpp"

namespace accelerate::comm {

using c10d::OpType;

namespace {

/// Below this number of elements one task is faster than one per rank.
constexpr int64_t kFewElements = 4096;

}  // namespace

void SharedOperation::plan(std::span<const int64_t> job_ranks) {
  if (error) return;
  std::vector<CollectiveFingerprint> signatures;
  for (const auto& each : ranks) {
    if (each->signature) signatures.push_back(*each->signature);
  }
  if (signatures.size() < ranks.size() && differs) {
    error = differs;
    return;
  }
  if (signatures.size() == ranks.size() && disagreement(signatures, 0, agreement, job_ranks)) {
    error = std::make_exception_ptr(FingerprintMismatch(signatures, agreement));
    return;
  }
  if (const auto text = validate_contributions(job_ranks)) {
    error = std::make_exception_ptr(PeerLost(*text));
    return;
  }
  const bool chunked = type == OpType::ALLREDUCE && of(0).outputs.at(0).numel() >= kFewElements;
  const bool whole = type == OpType::REDUCE || type == OpType::ALLREDUCE;
  tasks = type == OpType::BARRIER ? 0 : whole && !chunked ? 1 : ranks.size();
}

void SharedOperation::release_tensors() {
  for (auto& each : ranks) {
    each->inputs.clear();
    each->outputs.clear();
  }
}

void SharedOperation::execute(size_t task) {
  switch (type) {
    case OpType::ALLREDUCE:
    case OpType::REDUCE:
      return reduce_chunk(task);
    case OpType::_REDUCE_SCATTER_BASE:
      return reduce_rows(task);
    case OpType::BROADCAST:
      for (size_t i = 0; task != root && i < of(task).outputs.size(); ++i) {
        copy_bytes(of(task).outputs[i], 0, of(root).outputs[i], 0, byte_count(of(task).outputs[i]));
      }
      return;
    case OpType::_ALLGATHER_BASE:
      for (size_t r = 0; r < ranks.size(); ++r) {
        const auto& input = of(r).inputs[0];
        copy_bytes(of(task).outputs[0], static_cast<int64_t>(r) * byte_count(input), input, 0, byte_count(input));
      }
      return;
    case OpType::ALLGATHER:
      for (size_t r = 0; r < ranks.size(); ++r) {
        copy_bytes(of(task).outputs[r], 0, of(r).inputs[0], 0, byte_count(of(r).inputs[0]));
      }
      return;
    case OpType::ALLTOALL_BASE:
      return exchange(task);
    default:
      return;
  }
}

/// Reduces chunk r of all tensors in rank order, on any thread, so that every run produces the same bits.
void SharedOperation::reduce_chunk(size_t task) {
  for (size_t i = 0; i < of(0).outputs.size(); ++i) {
    const auto& first = of(0).outputs[i];
    const auto item = static_cast<int64_t>(first.element_size());
    const int64_t begin = first.numel() * static_cast<int64_t>(task) / static_cast<int64_t>(tasks);
    const int64_t end = first.numel() * static_cast<int64_t>(task + 1) / static_cast<int64_t>(tasks);
    const int64_t bytes = (end - begin) * item;
    if (bytes == 0) continue;
    std::vector<char> sum(static_cast<size_t>(bytes));
    std::memcpy(sum.data(), at_byte(first, begin * item), sum.size());
    for (size_t r = 1; r < ranks.size(); ++r) {
      reduce_into(sum.data(), at_byte(of(r).outputs[i], begin * item), end - begin, first.scalar_type(), op);
    }
    for (size_t r = 0; r < ranks.size(); ++r) {
      if (type == OpType::REDUCE && r != root) continue;
      std::memcpy(at_byte(of(r).outputs[i], begin * item), sum.data(), sum.size());
    }
  }
}

void SharedOperation::reduce_rows(size_t rank) {
  const auto& output = of(rank).outputs[0];
  const int64_t begin = static_cast<int64_t>(rank) * byte_count(output);
  // Not accumulated in the output, which may be this rank's own row of its input.
  std::vector<char> sum(static_cast<size_t>(byte_count(output)));
  if (sum.empty()) return;
  std::memcpy(sum.data(), at_byte(of(0).inputs[0], begin), sum.size());
  for (size_t r = 1; r < ranks.size(); ++r) {
    reduce_into(sum.data(), at_byte(of(r).inputs[0], begin), output.numel(), output.scalar_type(), op);
  }
  std::memcpy(at_byte(output, 0), sum.data(), sum.size());
}

int64_t SharedOperation::bytes_between(size_t from, size_t to) {
  const auto& sender = of(from);
  const at::Tensor& input = sender.inputs[0];
  const int64_t all_rows = input.dim() == 0 ? 0 : input.size(0);
  if (all_rows == 0) return 0;
  const int64_t rows =
      sender.input_rows.empty() ? all_rows / static_cast<int64_t>(ranks.size()) : sender.input_rows[to];
  return rows * (byte_count(input) / all_rows);
}

void SharedOperation::exchange(size_t rank) {
  int64_t into = 0;
  for (size_t r = 0; r < ranks.size(); ++r) {
    int64_t begin = 0;
    for (size_t before = 0; before < rank; ++before) begin += bytes_between(r, before);
    const int64_t bytes = bytes_between(r, rank);
    copy_bytes(of(rank).outputs[0], into, of(r).inputs[0], begin, bytes);
    into += bytes;
  }
}

}  // namespace accelerate::comm
