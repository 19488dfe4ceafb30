// SPDX-License-Identifier: Apache-2.0
// An all-reduce made of messages, which its caller can leave when its deadline passes; MPI_Allreduce cannot be left.
// Private to the mpi backend.
#pragma once

#include <chrono>
#include <vector>

#include "accelerate/comm/mpi/runtime.hpp"

namespace accelerate::comm {

/// The most ranks it is made for: a small tensor goes from every rank to every other in one step.
constexpr int kFewRanks = 8;

class MpiAllReduce {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  /// tag   of its messages
  MpiAllReduce(MPI_Comm communicator, int tag);

  /// Every rank gets the same bits. tensor: contiguous, on the CPU, of a dtype that plan_reduction gives; op is not
  /// mean. Throws DeadlinePassed, with who is missing where that is sure; PeerLost for what MPI reports and for a rank
  /// with another number of elements. After either MPI may still write to the tensor, which is then kept for ever; so
  /// must the communicator be.
  void run(const at::Tensor& tensor, ReduceOp op, Deadline deadline);

 private:
  struct Part {
    char* data;
    int64_t bytes;
  };
  struct Message {
    int peer;
    int64_t expected;  ///< bytes; -1: it is sent
  };

  /// Every rank has every other's, and adds them up in the order of the ranks.
  void run_direct(Part own);
  /// Round the ring twice: sums, then copies of them.
  void run_ring(Part own, bool first);
  void send(Part part, int to);
  void receive(Part part, int from);
  /// first: nobody's message waits for another one, so whoever has not answered at the deadline has not come.
  void wait(bool first);
  void check_sizes_and_errors(int code);
  [[nodiscard]] std::vector<int64_t> silent_peers() const;
  void reduce_into(char* into, const char* from, int64_t bytes) const;

  MPI_Comm comm_;
  int tag_;
  int rank_ = 0;
  int size_ = 1;
  std::vector<char> scratch_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<Message> messages_;  ///< of the requests
  // Of the operation under way.
  at::ScalarType dtype_ = at::kFloat;
  ReduceOp op_ = ReduceOp::sum;
  Deadline deadline_{};
};

}  // namespace accelerate::comm
