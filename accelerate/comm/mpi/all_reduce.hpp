// SPDX-License-Identifier: Apache-2.0
// An all-reduce made of messages, which its caller can leave when its deadline passes; MPI_Allreduce cannot be left.
// Private to the mpi backend.
#pragma once

#include <memory>

#include "accelerate/comm/core/reduce_op.hpp"
#include "accelerate/comm/mpi/handshake.hpp"

namespace accelerate::comm {

/// Between few ranks: a small tensor goes from every rank to every other with the handshake.
class MpiAllReduce {
 public:
  MpiAllReduce(MPI_Comm communicator, std::shared_ptr<MpiHandshake> handshake);

  /// Every rank gets the same bits. tensor: contiguous, on the CPU, of a dtype that plan_reduction gives; op is not
  /// mean. Throws as MpiHandshake and MpiRequests do; MPI may then still write to this object and to the tensor, which
  /// both must stay.
  void run(const at::Tensor& tensor, ReduceOp op, const AnnouncedCall& call, const Turn& turn);

 private:
  struct Part {
    char* data;
    int64_t bytes;
  };

  /// Every rank has every other's, and adds them up in the order of the ranks.
  void add_up(Part own);
  /// Round the ring twice: sums, then copies of them.
  void run_ring(Part own, const Turn& turn);
  void reduce_into(char* into, const char* from, int64_t bytes) const;

  std::shared_ptr<MpiHandshake> handshake_;
  MpiRequests requests_;
  int rank_ = 0;
  int size_ = 1;
  std::vector<char> scratch_;
  // Of the operation under way.
  at::ScalarType dtype_ = at::kFloat;
  ReduceOp op_ = ReduceOp::sum;
};

}  // namespace accelerate::comm
