// SPDX-License-Identifier: Apache-2.0
// A set of concurrent messages that a caller can abandon at its deadline. Private to the mpi backend.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "accelerate/comm/core/worker_thread.hpp"
#include "accelerate/comm/mpi/runtime.hpp"

namespace accelerate::comm {

/// Tags that user messages cannot have: for operations and for the diagnosis of peers.
constexpr int kOperationTag = 32767;
constexpr int kDiagnosisTag = 32766;
/// Higher than all of these: this rank sends no more messages to the group. All current MPI implementations support
/// tags of this size.
constexpr int kLeaveTag = 32768;

/// A longer wait means a slow network or a rank that computes. Continued polling would take a core from the backward
/// pass beside it; the kernel's buffers keep the network busy meanwhile.
constexpr std::chrono::milliseconds kSpinsBeforePause{1};
constexpr std::chrono::microseconds kPause{50};

/// Time for messages that a rank sent before it ended to arrive over the network.
constexpr std::chrono::milliseconds kInFlight{500};

/// Between machines longer messages are split into pieces of this size, below the 64 KiB that Open MPI's TCP transport
/// sends eagerly. Before a longer message Open MPI waits for an answer of the receiver, which queues behind the data of
/// the other direction, so that both directions of a link are used alternately (docs/explanation/benchmarks.md).
constexpr int64_t kAtOnce = int64_t{60} << 10;

/// MPI datatype of n bytes, because MPI counts in int.
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

/// Maximum number of elements in one MPI call.
constexpr int64_t kMaxElements = int64_t{1} << 30;

class MpiRequests {
 public:
  /// \param is_on_other_host  For each rank, whether messages are exchanged in pieces; both sides must agree.
  MpiRequests(MPI_Comm communicator, int tag, std::vector<bool> is_on_other_host = {})
      : comm_(communicator), tag_(tag), is_on_other_host_(std::move(is_on_other_host)) {}

  void send(const void* data, int64_t bytes, int to);
  void receive(void* data, int64_t bytes, int from);

  /// Waits until all messages are complete.
  ///
  /// \param check_peers  Called about every 100 ms during a long wait. Its exceptions end the wait.
  /// \throws DeadlineExceeded, or PeerLost for an MPI error. MPI may then still write to the memory, which must stay
  /// alive.
  void wait(const TaskContext& call_context, const std::function<void()>& check_peers = {});
  /// Polls once.
  /// \throws PeerLost
  bool test();
  /// After wait() or test(): ranks with incomplete messages, in order.
  [[nodiscard]] std::vector<int64_t> silent_peers() const;

 private:
  MPI_Request* add(int peer, bool receives);
  /// Calls each(begin, bytes) for the pieces of a message.
  template <typename Each>
  void in_pieces(int64_t bytes, int peer, const Each& each) const;

  struct Message {
    int peer;
    bool receives;
  };

  MPI_Comm comm_;
  int tag_;
  std::vector<bool> is_on_other_host_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<Message> messages_;  ///< one per request
};

}  // namespace accelerate::comm
