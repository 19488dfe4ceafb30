// SPDX-License-Identifier: Apache-2.0
// Exchange of call signatures before an operation: missing ranks are known by number, and a mismatch is reported before
// any data is modified. Private to the mpi backend.
#pragma once

#include <chrono>
#include <map>
#include <span>
#include <vector>

#include "accelerate/comm/core/announced_operation.hpp"
#include "accelerate/comm/mpi/requests.hpp"

namespace accelerate::comm {

class MpiHandshake {
 public:
  /// Largest payload that is sent within the handshake between few ranks.
  static constexpr int64_t kMaxPayload = 8 << 10;
  static constexpr int kFewRanks = 8;

  explicit MpiHandshake(MPI_Comm communicator);

  /// True if data of that size is sent within the handshake; equal on all ranks for equal sizes.
  [[nodiscard]] bool carries(int64_t bytes) const { return size_ <= kFewRanks && bytes <= kMaxPayload; }

  /// Returns after all ranks have joined with a matching call. The payload must have the same size on all ranks.
  /// \throws DeadlineExceeded with the missing ranks, FingerprintMismatch, PeerLeft or PeerLost. After any of these
  ///   except FingerprintMismatch no further run is possible, and MPI may still write to this object, which must stay
  ///   alive.
  void run(const AnnouncedOperation& call, std::span<const char> payload, const TaskContext& call_context);

  /// Replaces the next run: informs the other ranks that this rank will not join again. The communicator must stay
  /// alive, so that no later communicator reuses its id and receives the message. Call only while no run is pending.
  /// \throws PeerLost
  void announce_departure();

  /// Returns the payload of a rank, including this one. Valid until the next run; may be modified.
  [[nodiscard]] char* payload_of(int rank);

 private:
  [[nodiscard]] char* place_of(int rank) { return places_.data() + static_cast<size_t>(rank) * stride_; }
  void throw_if_peer_left();
  /// Called while waiting.
  /// \throws PeerLost if a missing rank has ended.
  void refuse_ended();
  void compare(const AnnouncedOperation& call);

  static constexpr size_t kHeader = CollectiveFingerprint::kWords * sizeof(int64_t);

  MPI_Comm comm_;
  int rank_ = 0;
  int size_ = 1;
  size_t stride_ = kHeader;
  std::vector<char> places_;  ///< header and payload of each rank
  MpiRequests requests_;
  std::vector<int> job_ranks_;
  /// ranks that have ended, with the time at which this was detected
  std::map<int, std::chrono::steady_clock::time_point> ended_;
};

}  // namespace accelerate::comm
