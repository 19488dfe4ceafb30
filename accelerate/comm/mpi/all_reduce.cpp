// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/mpi/all_reduce.hpp"

#include <algorithm>
#include <cstring>

#include "accelerate/comm/core/bytes.hpp"
#include "accelerate/comm/core/elementwise.hpp"

namespace accelerate::comm {
namespace {

/// The ring goes in slices that stay in the cache between its two rounds.
constexpr int64_t kSliceBytes = 4 << 20;

}  // namespace

MpiAllReduce::MpiAllReduce(MPI_Comm communicator, std::shared_ptr<MpiHandshake> handshake)
    : handshake_(std::move(handshake)), requests_(communicator, kOperationTag) {
  check_mpi(MPI_Comm_rank(communicator, &rank_));
  check_mpi(MPI_Comm_size(communicator, &size_));
}

void MpiAllReduce::run(const at::Tensor& tensor, ReduceOp op, const AnnouncedCall& call, const Turn& turn) {
  dtype_ = tensor.scalar_type();
  op_ = op;
  const int64_t bytes = byte_count(tensor);
  const Part own{at_byte(tensor, 0), bytes};
  if (handshake_->carries(bytes)) {
    handshake_->run(call, {own.data, static_cast<size_t>(bytes)}, turn);
    return add_up(own);
  }
  handshake_->run(call, {}, turn);
  for (int64_t begin = 0; begin < bytes; begin += kSliceBytes) {
    run_ring({own.data + begin, std::min(kSliceBytes, bytes - begin)}, turn);
  }
}

void MpiAllReduce::add_up(Part own) {
  char* const sum = handshake_->payload_of(0);
  for (int rank = 1; rank < size_; ++rank) reduce_into(sum, handshake_->payload_of(rank), own.bytes);
  std::memcpy(own.data, sum, static_cast<size_t>(own.bytes));
}

void MpiAllReduce::run_ring(Part own, const Turn& turn) {
  const int64_t element = static_cast<int64_t>(c10::elementSize(dtype_));
  const int64_t share = (own.bytes / element + size_ - 1) / size_ * element;
  const auto part = [&](int index) {
    const int64_t begin = std::min((index % size_) * share, own.bytes);
    return Part{own.data + begin, std::min(share, own.bytes - begin)};
  };
  const auto send = [&](Part data, int to) { requests_.send(data.data, data.bytes, to); };
  const auto receive = [&](Part data, int from) { requests_.receive(data.data, data.bytes, from); };
  scratch_.resize(static_cast<size_t>(share));
  const int next = (rank_ + 1) % size_;
  const int previous = (rank_ + size_ - 1) % size_;
  for (int step = 0; step < size_ - 1; ++step) {  // part r ends, whole, at rank r - 1
    const Part into = part(rank_ - step - 1 + size_);
    receive({scratch_.data(), into.bytes}, previous);
    send(part(rank_ - step + size_), next);
    requests_.wait(turn);
    reduce_into(into.data, scratch_.data(), into.bytes);
  }
  for (int step = 0; step < size_ - 1; ++step) {
    receive(part(rank_ - step + size_), previous);
    send(part(rank_ - step + 1 + size_), next);
    requests_.wait(turn);
  }
}

void MpiAllReduce::reduce_into(char* into, const char* from, int64_t bytes) const {
  comm::reduce_into(into, from, bytes / static_cast<int64_t>(c10::elementSize(dtype_)), dtype_, op_);
}

}  // namespace accelerate::comm
