// SPDX-License-Identifier: Apache-2.0
// Before an operation every rank tells every other what it is about to do: who has not come is known by name, and ranks
// that would do different things are told before anything is changed. Private to the mpi backend.
#pragma once

#include <chrono>
#include <map>
#include <span>
#include <vector>

#include "accelerate/comm/core/call_signature.hpp"
#include "accelerate/comm/mpi/requests.hpp"

namespace accelerate::comm {

/// What a rank is about to do, and how much of it must be the same elsewhere.
struct AnnouncedCall {
  CallSignature signature{};
  Agreement agreement = Agreement::operation_only;
};

class MpiHandshake {
 public:
  /// Up to here an operation's data travels along, between few ranks.
  static constexpr int64_t kMostPayload = 8 << 10;
  static constexpr int kFewRanks = 8;

  explicit MpiHandshake(MPI_Comm communicator);

  /// Whether data of that size may travel along; the same on every rank that gives the same size.
  [[nodiscard]] bool carries(int64_t bytes) const { return size_ <= kFewRanks && bytes <= kMostPayload; }

  /// Returns when all ranks have come with a call that fits. payload: of the same size on all ranks where the calls
  /// fit. Throws DeadlinePassed with those who have not come, SignaturesDiffer, MemberLeft, PeerLost; all but
  /// SignaturesDiffer once and for ever: MPI may still write to this object, which must stay.
  void run(const AnnouncedCall& call, std::span<const char> payload, const Turn& turn);

  /// Instead of a next run: tells the others that this rank comes no more. The communicator must stay, so that no later
  /// one takes its number and the message. Only while no run is under way. Throws PeerLost.
  void leave();

  /// A rank's payload, this one's too, until the next run. May be changed.
  [[nodiscard]] char* payload_of(int rank);

 private:
  [[nodiscard]] char* place_of(int rank) { return places_.data() + static_cast<size_t>(rank) * stride_; }
  void refuse_leavers();
  /// While it waits. Throws PeerLost.
  void refuse_ended();
  void compare(const AnnouncedCall& call);

  static constexpr size_t kHeader = CallSignature::kWords * sizeof(int64_t);

  MPI_Comm comm_;
  int rank_ = 0;
  int size_ = 1;
  size_t stride_ = kHeader;
  std::vector<char> places_;  ///< a header and a payload of each rank
  MpiRequests requests_;
  std::vector<int> job_ranks_;
  std::map<int, std::chrono::steady_clock::time_point> ended_;  ///< who has, since when that is known
};

}  // namespace accelerate::comm
