// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks: they need no turn among the operations. Private to the mpi backend.
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
  /// job_ranks   the ranks' numbers in the job, for texts
  MpiMailbox(std::shared_ptr<MpiChannel> channel, std::vector<int64_t> job_ranks, std::chrono::milliseconds timeout)
      : channel_(std::move(channel)), job_ranks_(std::move(job_ranks)), timeout_(timeout) {}

  /// Under way at once; whoever waits for it sees to it that it ends. Throws PeerLost.
  c10::intrusive_ptr<c10d::Work> send(const at::Tensor& tensor, int to, int tag);
  c10::intrusive_ptr<c10d::Work> receive(const at::Tensor& tensor, int from, int tag);

  /// Tells the others that no more messages come from here. Once for a communicator that stays.
  void leave() noexcept;

  /// Until those whose handles were dropped have ended; false when they did not within the time.
  bool finish_dropped(std::chrono::milliseconds patience) noexcept;

 private:
  friend class MpiMessage;
  struct Dropped {
    MPI_Request request;
    at::Tensor tensor;
  };

  void keep(MPI_Request request, at::Tensor tensor) noexcept;

  std::shared_ptr<MpiChannel> channel_;
  std::vector<int64_t> job_ranks_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::list<Dropped> dropped_;
};

}  // namespace accelerate::comm
