// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/mpi/all_reduce.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "accelerate/comm/core/bytes.hpp"
#include "accelerate/comm/core/connection.hpp"
#include "accelerate/comm/core/elementwise.hpp"

namespace accelerate::comm {
namespace {

/// Up to here one step is quicker than two times round the ring.
constexpr int64_t kSmallBytes = 8 << 10;
/// The ring goes in slices that stay in the cache between its two rounds.
constexpr int64_t kSliceBytes = 4 << 20;
/// Looks at the requests before the thread lets others go first: about 20 us.
constexpr int kSpins = 200;

/// What MPI may still write to when its caller has left.
void keep_for_ever(at::Tensor tensor, std::vector<char> scratch) {
  new std::pair(std::move(tensor), std::move(scratch));  // NOLINT: leaked on purpose
}

[[noreturn]] void fail_with_other_size(int rank) {
  throw PeerLost(fmt::format(
      "rank {} of the group gives another number of elements; they must be equal, ACCELERATE_DEBUG_MODE=1 tells "
      "both",
      rank));
}

}  // namespace

MpiAllReduce::MpiAllReduce(MPI_Comm communicator, int tag) : comm_(communicator), tag_(tag) {
  check_mpi(MPI_Comm_rank(comm_, &rank_));
  check_mpi(MPI_Comm_size(comm_, &size_));
}

void MpiAllReduce::run(const at::Tensor& tensor, ReduceOp op, Deadline deadline) {
  dtype_ = tensor.scalar_type();
  op_ = op;
  deadline_ = deadline;
  const int64_t bytes = byte_count(tensor);
  try {
    if (bytes <= kSmallBytes) return run_direct({at_byte(tensor, 0), bytes});
    for (int64_t begin = 0; begin < bytes; begin += kSliceBytes) {
      run_ring({at_byte(tensor, begin), std::min(kSliceBytes, bytes - begin)}, /*first=*/begin == 0);
    }
  } catch (...) {
    keep_for_ever(tensor, std::exchange(scratch_, {}));
    throw;
  }
}

void MpiAllReduce::run_direct(Part own) {
  const auto length = static_cast<size_t>(own.bytes);
  scratch_.resize(length * static_cast<size_t>(size_));
  const auto part_of = [&](int rank) { return Part{scratch_.data() + rank * own.bytes, own.bytes}; };
  for (int step = 1; step < size_; ++step) {
    receive(part_of((rank_ + step) % size_), (rank_ + step) % size_);
  }
  for (int step = 1; step < size_; ++step) send(own, (rank_ + step) % size_);
  std::memcpy(part_of(rank_).data, own.data, length);
  wait(/*first=*/true);
  for (int rank = 1; rank < size_; ++rank) reduce_into(part_of(0).data, part_of(rank).data, own.bytes);
  std::memcpy(own.data, part_of(0).data, length);
}

void MpiAllReduce::run_ring(Part own, bool first) {
  const int64_t element = static_cast<int64_t>(c10::elementSize(dtype_));
  const int64_t share = (own.bytes / element + size_ - 1) / size_ * element;
  const auto part = [&](int index) {
    const int64_t begin = std::min((index % size_) * share, own.bytes);
    return Part{own.data + begin, std::min(share, own.bytes - begin)};
  };
  scratch_.resize(static_cast<size_t>(share));
  const int next = (rank_ + 1) % size_;
  const int previous = (rank_ + size_ - 1) % size_;
  for (int step = 0; step < size_ - 1; ++step) {  // part r ends, whole, at rank r - 1
    const Part into = part(rank_ - step - 1 + size_);
    receive({scratch_.data(), into.bytes}, previous);
    send(part(rank_ - step + size_), next);
    wait(first && step == 0);
    reduce_into(into.data, scratch_.data(), into.bytes);
  }
  for (int step = 0; step < size_ - 1; ++step) {
    receive(part(rank_ - step + size_), previous);
    send(part(rank_ - step + 1 + size_), next);
    wait(/*first=*/false);
  }
}

void MpiAllReduce::send(Part part, int to) {
  if (part.bytes == 0) return;
  messages_.push_back({to, -1});
  check_mpi(MPI_Isend(part.data, static_cast<int>(part.bytes), MPI_BYTE, to, tag_, comm_,
                      &requests_.emplace_back(MPI_REQUEST_NULL)));
}

void MpiAllReduce::receive(Part part, int from) {
  if (part.bytes == 0) return;
  messages_.push_back({from, part.bytes});
  check_mpi(MPI_Irecv(part.data, static_cast<int>(part.bytes), MPI_BYTE, from, tag_, comm_,
                      &requests_.emplace_back(MPI_REQUEST_NULL)));
}

void MpiAllReduce::wait(bool first) {
  statuses_.resize(requests_.size());
  int done = 0;
  int code = MPI_SUCCESS;
  for (int64_t look = 0;; ++look) {
    code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses_.data());
    if (done != 0 || code != MPI_SUCCESS) break;
    if (look < kSpins) continue;
    if (std::chrono::steady_clock::now() > deadline_)
      throw DeadlinePassed(first ? silent_peers() : std::vector<int64_t>{});
    std::this_thread::yield();
  }
  check_sizes_and_errors(code);
  requests_.clear();
  messages_.clear();
}

void MpiAllReduce::check_sizes_and_errors(int code) {
  for (size_t i = 0; i < requests_.size(); ++i) {
    const Message& message = messages_[i];
    int error = MPI_SUCCESS;
    MPI_Error_class(code == MPI_ERR_IN_STATUS ? statuses_[i].MPI_ERROR : code, &error);
    int64_t came = message.expected;
    if (code == MPI_SUCCESS && message.expected >= 0) {
      int count = 0;
      MPI_Get_count(&statuses_[i], MPI_BYTE, &count);
      came = count;
    }
    if (error == MPI_ERR_TRUNCATE || came != message.expected) fail_with_other_size(message.peer);
    if (error != MPI_ERR_PENDING) check_mpi(error);
  }
}

std::vector<int64_t> MpiAllReduce::silent_peers() const {
  std::vector<int64_t> silent;
  for (size_t i = 0; i < requests_.size(); ++i) {
    int answered = 0;
    MPI_Request_get_status(requests_[i], &answered, MPI_STATUS_IGNORE);
    const int64_t peer = messages_[i].peer;
    if (answered == 0 && std::find(silent.begin(), silent.end(), peer) == silent.end()) silent.push_back(peer);
  }
  std::sort(silent.begin(), silent.end());
  return silent;
}

void MpiAllReduce::reduce_into(char* into, const char* from, int64_t bytes) const {
  comm::reduce_into(into, from, bytes / static_cast<int64_t>(c10::elementSize(dtype_)), dtype_, op_);
}

}  // namespace accelerate::comm
