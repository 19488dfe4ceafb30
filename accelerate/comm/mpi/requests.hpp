// SPDX-License-Identifier: Apache-2.0
// Messages under way together, which their caller can leave when its time is up. Private to the mpi backend.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "accelerate/comm/core/worker.hpp"
#include "accelerate/comm/mpi/runtime.hpp"

namespace accelerate::comm {

/// The tags that messages of users leave free: of operations, and of the question after peers.
constexpr int kOperationTag = 32767;
constexpr int kInquiryTag = 32766;
/// Above all of these: this rank sends no more messages to the group. Every MPI of today has tags that high.
constexpr int kLeaveTag = 32768;

/// What takes longer waits for a cable, or for a rank that computes. A thread that goes on looking would take its core
/// from the backward beside it; the kernel's buffers keep a cable busy meanwhile.
constexpr std::chrono::milliseconds kUntilPauses{1};
constexpr std::chrono::microseconds kPause{50};

/// For what a rank sent before it left, over whatever cable.
constexpr std::chrono::milliseconds kOnTheWay{500};

/// Between machines longer messages go in pieces of this size, below the 64 KiB that Open MPI's TCP sends at once. For
/// more it first asks the receiver, whose answer waits behind all that comes the other way over the same connection:
/// both directions of a cable are then used in turn, not together (bench/README.md, hosts).
constexpr int64_t kAtOnce = int64_t{60} << 10;

/// n bytes as one element of a type, because MPI counts in int.
class MpiBytes {
 public:
  explicit MpiBytes(int64_t bytes);
  MpiBytes(const MpiBytes&) = delete;
  MpiBytes& operator=(const MpiBytes&) = delete;
  ~MpiBytes();
  [[nodiscard]] int count() const { return count_; }
  [[nodiscard]] MPI_Datatype type() const { return type_; }

 private:
  MPI_Datatype type_ = MPI_BYTE;
  int count_ = 0;
};

/// The most elements of one call of MPI.
constexpr int64_t kMostElements = int64_t{1} << 30;

class MpiRequests {
 public:
  /// elsewhere   ranks with which messages are exchanged in pieces, as they do, too
  MpiRequests(MPI_Comm communicator, int tag, std::vector<bool> elsewhere = {})
      : comm_(communicator), tag_(tag), elsewhere_(std::move(elsewhere)) {}

  void send(const void* data, int64_t bytes, int to);
  void receive(void* data, int64_t bytes, int from);

  /// Until all are there. Throws DeadlinePassed, PeerLost for what MPI reports: then MPI may still write to the memory,
  /// which must stay.
  ///
  /// look_around   called about every 100 ms of a long wait; what it throws ends the wait
  void wait(const Turn& turn, const std::function<void()>& look_around = {});
  /// Looks once. Throws PeerLost.
  bool test();
  /// After wait or test: whose messages have not come, in order.
  [[nodiscard]] std::vector<int64_t> silent_peers() const;

 private:
  MPI_Request* add(int peer, bool receives);
  /// each(begin, bytes) for the message's pieces.
  template <typename Each>
  void in_pieces(int64_t bytes, int peer, const Each& each) const;

  struct Message {
    int peer;
    bool receives;
  };

  MPI_Comm comm_;
  int tag_;
  std::vector<bool> elsewhere_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<Message> messages_;  ///< of the requests
};

}  // namespace accelerate::comm
