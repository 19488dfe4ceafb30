// SPDX-License-Identifier: Apache-2.0
// Reductions made of messages, which their caller can leave when its deadline passes; MPI's own cannot be left. Private
// to the mpi backend.
#pragma once

#include <memory>
#include <vector>

#include "accelerate/comm/core/reduce_op.hpp"
#include "accelerate/comm/mpi/handshake.hpp"

namespace accelerate::comm {

/// The ring: a reduce-scatter, after which each rank has a part that is whole, and an all-gather of the parts; together
/// they are the all-reduce. Between few ranks a small tensor goes from every rank to every other with the handshake.
///
/// tensor: contiguous, on the CPU, changed in place, of a dtype that wire_format_of gives; op is not mean. Throws as
/// MpiHandshake and MpiRequests do; MPI may then still write to this object and to the tensor, which both must stay.
class MpiAllReduce {
 public:
  /// elsewhere   ranks on other machines than this one's
  MpiAllReduce(MPI_Comm communicator, std::shared_ptr<MpiHandshake> handshake, std::vector<bool> elsewhere);

  /// Every rank gets the same bits.
  void run(const at::Tensor& tensor, ReduceOp op, const AnnouncedCall& call, const Turn& turn);
  /// tensor   of P equal parts, one behind the other: this rank's becomes the reduction, the others are used up
  void reduce_scatter(const at::Tensor& tensor, ReduceOp op, const AnnouncedCall& call, const Turn& turn);
  /// tensor   of P equal parts, one behind the other: each becomes that of its rank
  void all_gather(const at::Tensor& tensor, const AnnouncedCall& call, const Turn& turn);

 private:
  struct Part {
    char* data;
    int64_t bytes;
  };

  /// One Part for each rank, which ends whole on it.
  using Parts = std::vector<Part>;

  /// Every rank has every other's, and adds them up in the order of the ranks.
  void add_up(Part own);
  /// Once round the ring each.
  void sum_parts(const Parts& parts, const Turn& turn);
  void copy_parts(const Parts& parts, const Turn& turn);
  /// each(parts) for slices of the parts that stay in the cache.
  template <typename Each>
  void in_slices(const at::Tensor& tensor, const Each& each) const;
  [[nodiscard]] Parts shared_out(Part whole) const;
  [[nodiscard]] size_t index(int rank) const { return static_cast<size_t>((rank % size_ + size_) % size_); }
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
