// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/mpi/handshake.hpp"

#include <fmt/format.h>

#include <cstring>

#include "accelerate/comm/core/connection.hpp"

namespace accelerate::comm {
namespace {

/// Value in place of an operation's number: the rank has left.
constexpr int64_t kLeft = -1;

}  // namespace

MpiHandshake::MpiHandshake(MPI_Comm communicator) : comm_(communicator), requests_(communicator, kOperationTag) {
  check_mpi(MPI_Comm_rank(comm_, &rank_));
  check_mpi(MPI_Comm_size(comm_, &size_));
  if (size_ <= kFewRanks) stride_ += kMaxPayload;
  places_.resize(stride_ * static_cast<size_t>(size_));
  job_ranks_ = MpiRuntime::job_ranks(comm_);
}

char* MpiHandshake::payload_of(int rank) { return place_of(rank) + kHeader; }

void MpiHandshake::run(const AnnouncedOperation& call, std::span<const char> payload, const TaskContext& call_context) {
  const auto header = encode(call.fingerprint);
  char* const mine = place_of(rank_);
  std::memcpy(mine, header.data(), kHeader);
  if (!payload.empty()) std::memcpy(mine + kHeader, payload.data(), payload.size());
  for (int step = 1; step < size_; ++step) {
    const int peer = (rank_ + step) % size_;
    // maximum length, because the peer's call may differ
    requests_.receive(place_of(peer), static_cast<int64_t>(stride_), peer);
  }
  const auto bytes = static_cast<int64_t>(kHeader + payload.size());
  for (int step = 1; step < size_; ++step) requests_.send(mine, bytes, (rank_ + step) % size_);
  try {
    requests_.wait(call_context, [this] { refuse_ended(); });
  } catch (const DeadlineExceeded&) {
    throw DeadlineExceeded(requests_.silent_peers());
  }
  throw_if_peer_left();
  compare(call);
}

void MpiHandshake::announce_departure() {
  char* const mine = place_of(rank_);
  std::memcpy(mine, &kLeft, sizeof(kLeft));
  for (int step = 1; step < size_; ++step) requests_.send(mine, sizeof(kLeft), (rank_ + step) % size_);
}

void MpiHandshake::throw_if_peer_left() {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_ && std::memcmp(place_of(rank), &kLeft, sizeof(kLeft)) == 0) throw PeerLeft(rank);
  }
}

void MpiHandshake::refuse_ended() {
  const auto now = std::chrono::steady_clock::now();
  for (const int64_t rank : requests_.silent_peers()) {
    const int peer = static_cast<int>(rank);
    const int job_rank = job_ranks_.at(static_cast<size_t>(peer));
    if (!MpiRuntime::has_ended(job_rank)) continue;
    if (now > ended_.try_emplace(peer, now).first->second + kInFlight) {
      throw PeerLost(fmt::format("rank {} has ended", job_rank));
    }
  }
}

void MpiHandshake::compare(const AnnouncedOperation& call) {
  bool same = true;
  for (int rank = 0; same && rank < size_; ++rank) {
    same = rank == rank_ || std::memcmp(place_of(rank), place_of(rank_), kHeader) == 0;
  }
  if (same) return;
  std::vector<CollectiveFingerprint> all;
  std::vector<int64_t> ranks;
  for (int rank = 0; rank < size_; ++rank) {
    std::array<int64_t, CollectiveFingerprint::kWords> words{};
    std::memcpy(words.data(), place_of(rank), kHeader);
    all.push_back(decode(words));
    ranks.push_back(rank);
  }
  // If two signatures differ, every rank fails with its own text, so all ranks leave the operation together.
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (disagreement(all, rank, call.agreement, ranks)) throw FingerprintMismatch(std::move(all), call.agreement);
  }
}

}  // namespace accelerate::comm
