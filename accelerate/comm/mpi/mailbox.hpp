// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks, independent of the order of operations. Private to the mpi backend.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "accelerate/comm/mpi/channel.hpp"

namespace accelerate::comm {

class MpiMailbox : public std::enable_shared_from_this<MpiMailbox> {
 public:
  /// \param job_ranks  The ranks' numbers in the job, for messages.
  MpiMailbox(std::shared_ptr<MpiChannel> channel, std::vector<int64_t> job_ranks, std::chrono::milliseconds timeout)
      : channel_(std::move(channel)), job_ranks_(std::move(job_ranks)), timeout_(timeout) {}

  /// Starts sending at once; wait() completes it.
  /// \throws PeerLost
  c10::intrusive_ptr<c10d::Work> send(const at::Tensor& tensor, int to, int tag);
  c10::intrusive_ptr<c10d::Work> receive(const at::Tensor& tensor, int from, int tag);

  /// Informs the other ranks that no more messages will be sent from here. Call once; the communicator must stay alive.
  void announce_departure() noexcept;

  /// Waits for messages with dropped handles. Returns false if they are not complete in time.
  bool finish_abandoned(std::chrono::milliseconds patience) noexcept;

 private:
  friend class MpiMessage;
  struct AbandonedMessage {
    MPI_Request request;
    at::Tensor tensor;
  };

  void keep(MPI_Request request, at::Tensor tensor) noexcept;

  std::shared_ptr<MpiChannel> channel_;
  std::vector<int64_t> job_ranks_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::list<AbandonedMessage> dropped_;
};

}  // namespace accelerate::comm
