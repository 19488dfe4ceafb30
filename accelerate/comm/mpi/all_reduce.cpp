// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/mpi/all_reduce.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "accelerate/comm/core/bytes.hpp"
#include "accelerate/comm/core/elementwise.hpp"

namespace accelerate::comm {
namespace {

// The ring processes slices that stay in the cache between its two rounds.
constexpr int64_t kSliceBytes = 4 << 20;

}  // namespace

MpiAllReduce::MpiAllReduce(MPI_Comm communicator, std::shared_ptr<MpiHandshake> handshake,
                           std::vector<bool> is_on_other_host)
    : handshake_(std::move(handshake)), requests_(communicator, kOperationTag, std::move(is_on_other_host)) {
  check_mpi(MPI_Comm_rank(communicator, &rank_));
  check_mpi(MPI_Comm_size(communicator, &size_));
}

void MpiAllReduce::run(const at::Tensor& tensor, ReduceOp op, const AnnouncedCall& call,
                       const TaskContext& call_context) {
  dtype_ = tensor.scalar_type();
  op_ = op;
  const int64_t bytes = byte_count(tensor);
  const Part own{at_byte(tensor, 0), bytes};
  if (handshake_->carries(bytes)) {
    handshake_->run(call, {own.data, static_cast<size_t>(bytes)}, call_context);
    return sum_all(own);
  }
  handshake_->run(call, {}, call_context);
  for (int64_t begin = 0; begin < bytes; begin += kSliceBytes) {
    const Parts parts = split_into_parts({own.data + begin, std::min(kSliceBytes, bytes - begin)});
    sum_parts(parts, call_context);
    copy_parts(parts, call_context);
  }
}

void MpiAllReduce::reduce_scatter(const at::Tensor& tensor, ReduceOp op, const AnnouncedCall& call,
                                  const TaskContext& call_context) {
  dtype_ = tensor.scalar_type();
  op_ = op;
  handshake_->run(call, {}, call_context);
  in_slices(tensor, [&](const Parts& parts) { sum_parts(parts, call_context); });
}

void MpiAllReduce::all_gather(const at::Tensor& tensor, const AnnouncedCall& call, const TaskContext& call_context) {
  handshake_->run(call, {}, call_context);
  in_slices(tensor, [&](const Parts& parts) { copy_parts(parts, call_context); });
}

template <typename Each>
void MpiAllReduce::in_slices(const at::Tensor& tensor, const Each& each) const {
  const int64_t share = byte_count(tensor) / size_;
  for (int64_t begin = 0; begin < share; begin += kSliceBytes) {
    Parts parts;
    for (int rank = 0; rank < size_; ++rank) {
      parts.push_back({at_byte(tensor, rank * share + begin), std::min(kSliceBytes, share - begin)});
    }
    each(parts);
  }
}

MpiAllReduce::Parts MpiAllReduce::split_into_parts(Part whole) const {
  const auto element = static_cast<int64_t>(c10::elementSize(dtype_));
  const int64_t share = (whole.bytes / element + size_ - 1) / size_ * element;
  Parts parts;
  for (int rank = 0; rank < size_; ++rank) {
    const int64_t begin = std::min(rank * share, whole.bytes);
    parts.push_back({whole.data + begin, std::min(share, whole.bytes - begin)});
  }
  return parts;
}

void MpiAllReduce::sum_all(Part own) {
  char* const sum = handshake_->payload_of(0);
  for (int rank = 1; rank < size_; ++rank) reduce_into(sum, handshake_->payload_of(rank), own.bytes);
  std::memcpy(own.data, sum, static_cast<size_t>(own.bytes));
}

// Each received part is added to this rank's part and sent on. The last received part is the sum of all other ranks.
void MpiAllReduce::sum_parts(const Parts& parts, const TaskContext& call_context) {
  for (int step = 0; step < size_ - 1; ++step) {
    const Part into = parts[index(rank_ - step - 2)];
    const Part out = parts[index(rank_ - step - 1)];
    if (static_cast<int64_t>(scratch_.size()) < into.bytes) scratch_.resize(static_cast<size_t>(into.bytes));
    requests_.receive(scratch_.data(), into.bytes, static_cast<int>(index(rank_ - 1)));
    requests_.send(out.data, out.bytes, static_cast<int>(index(rank_ + 1)));
    requests_.wait(call_context);
    reduce_into(into.data, scratch_.data(), into.bytes);
  }
}

void MpiAllReduce::copy_parts(const Parts& parts, const TaskContext& call_context) {
  for (int step = 0; step < size_ - 1; ++step) {
    const Part into = parts[index(rank_ - step - 1)];
    const Part out = parts[index(rank_ - step)];
    requests_.receive(into.data, into.bytes, static_cast<int>(index(rank_ - 1)));
    requests_.send(out.data, out.bytes, static_cast<int>(index(rank_ + 1)));
    requests_.wait(call_context);
  }
}

void MpiAllReduce::reduce_into(char* into, const char* from, int64_t bytes) const {
  comm::reduce_into(into, from, bytes / static_cast<int64_t>(c10::elementSize(dtype_)), dtype_, op_);
}

}  // namespace accelerate::comm
