// SPDX-License-Identifier: Apache-2.0
// Private: messages between ranks on one machine, through memory that they share.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "accelerate/comm/gloo/shared_memory.hpp"

namespace accelerate::comm {

/// A message passes through the slots of its channel in pieces. The receiver copies a piece to the tensor of the first
/// pending receive with that tag. If there is none, but a receive with another tag waits behind the message, the
/// receiver keeps the message in its own memory. This memory has no limit: a full channel would block the message that
/// the receiver waits for, which may be behind any number of others, and both ranks would wait until the timeout. A
/// receiver that expects messages in the order of their sends keeps none.
///
/// A call transfers as much as possible at once. Then wait() and isCompleted() transfer the pieces of all pending
/// messages. If no caller waits, a thread does so, because a peer may wait for a message before it joins an operation
/// for which this rank waits. A message remains pending if its wait() reached the deadline.
///
/// Tensors are contiguous tensors on the CPU, and must not be changed, or read, before their message is complete.
/// Thread-safe.
class LocalMailbox {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  /// More ranks would have small slots.
  static constexpr int64_t kMaxRanks = SharedMemory::kMaxRanksWithChannels;

  /// \param memory     Shared by the ranks, each with an object of this class.
  /// \param job_ranks  The ranks' numbers in the job, for error messages.
  /// \param timeout    Of a message, unless wait() has another one.
  LocalMailbox(std::shared_ptr<SharedMemory> memory, int64_t rank, std::vector<int64_t> job_ranks,
               std::chrono::milliseconds timeout);
  LocalMailbox(const LocalMailbox&) = delete;
  LocalMailbox& operator=(const LocalMailbox&) = delete;
  /// Sends the messages for which nobody waited, because other ranks may wait for them, unless their receiver leaves,
  /// too. Drops pending receives.
  ~LocalMailbox();

  /// Messages of one sender, receiver and tag arrive in the order of the calls. The result's wait() throws
  /// DeadlineExceeded with the other rank, or PeerLost if it has left or ended.
  WorkPtr send(const at::Tensor& tensor, int64_t to, int64_t tag);
  /// The result's wait() also throws PeerLost if the message has another number of bytes, or if there is no memory
  /// for an earlier message with another tag. The tensor is unchanged then.
  WorkPtr receive(const at::Tensor& tensor, int64_t from, int64_t tag);

  /// Drops the messages that are not complete. Later ones fail at once.
  void abandon() noexcept;

 private:
  struct Message;
  class Transfers;
  class Handle;

  WorkPtr submit(c10d::OpType type, const at::Tensor& tensor, int64_t peer, int64_t tag);

  std::shared_ptr<Transfers> transfers_;  // shared with handles and the thread
  std::once_flag has_thread_;
  std::thread thread_;
};

}  // namespace accelerate::comm
