// SPDX-License-Identifier: Apache-2.0
// Reductions built from messages, which a caller can abandon at its deadline. MPI's own reductions cannot be abandoned.
// Private to the mpi backend.
#pragma once

#include <memory>
#include <vector>

#include "accelerate/comm/core/reduce_op.hpp"
#include "accelerate/comm/mpi/handshake.hpp"

namespace accelerate::comm {

/// Ring all-reduce: a reduce-scatter followed by an all-gather of the parts. Between few ranks a small tensor is
/// instead sent from every rank to every other rank within the handshake.
///
/// The tensor must be a contiguous CPU tensor with a dtype from wire_format_of(); it is modified in place. `op` must
/// not be mean.
/// \throws as MpiHandshake and MpiRequests do. MPI may then still write to this object and to the tensor, so both must
///   stay alive.
class MpiAllReduce {
 public:
  /// \param is_on_other_host  For each rank, whether it is on another machine.
  MpiAllReduce(MPI_Comm communicator, std::shared_ptr<MpiHandshake> handshake, std::vector<bool> is_on_other_host);

  /// The results are bit-identical on all ranks.
  void run(const at::Tensor& tensor, ReduceOp op, const AnnouncedCall& call, const TaskContext& call_context);
  /// \param tensor  P equal parts in sequence. This rank's part becomes the reduction; the other parts are overwritten.
  void reduce_scatter(const at::Tensor& tensor, ReduceOp op, const AnnouncedCall& call,
                      const TaskContext& call_context);
  /// \param tensor  P equal parts in sequence. Each part becomes the part of its rank.
  void all_gather(const at::Tensor& tensor, const AnnouncedCall& call, const TaskContext& call_context);

 private:
  struct Part {
    char* data;
    int64_t bytes;
  };

  /// One Part per rank; a part becomes complete on its rank.
  using Parts = std::vector<Part>;

  /// Adds up the parts of all ranks in rank order, on every rank.
  void sum_all(Part own);
  /// Each of these is one round of the ring.
  void sum_parts(const Parts& parts, const TaskContext& call_context);
  void copy_parts(const Parts& parts, const TaskContext& call_context);
  /// Calls each(parts) for slices of the parts that fit into the cache.
  template <typename Each>
  void in_slices(const at::Tensor& tensor, const Each& each) const;
  [[nodiscard]] Parts split_into_parts(Part whole) const;
  [[nodiscard]] size_t index(int rank) const { return static_cast<size_t>((rank % size_ + size_) % size_); }
  void reduce_into(char* into, const char* from, int64_t bytes) const;

  std::shared_ptr<MpiHandshake> handshake_;
  MpiRequests requests_;
  int rank_ = 0;
  int size_ = 1;
  std::vector<char> scratch_;
  // Dtype and reduction of the pending operation.
  at::ScalarType dtype_ = at::kFloat;
  ReduceOp op_ = ReduceOp::sum;
};

}  // namespace accelerate::comm
