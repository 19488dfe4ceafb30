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
  void run(const at::Tensor& tensor, ReduceOp op, const AnnouncedOperation& call, const TaskContext& call_context);
  /// \param tensor  P equal parts in sequence. This rank's part becomes the reduction; the other parts are overwritten.
  void reduce_scatter(const at::Tensor& tensor, ReduceOp op, const AnnouncedOperation& call,
                      const TaskContext& call_context);
  /// \param tensor  P equal parts in sequence. Each part becomes the part of its rank.
  void all_gather(const at::Tensor& tensor, const AnnouncedOperation& call, const TaskContext& call_context);

 private:
  struct Part {
    char* data;
    int64_t bytes;
  };

  /// One Part per rank; a part becomes complete on its rank.
  using Parts = std::vector<Part>;
  /// Slices of a tensor that fit into the cache.
  using Slices = std::vector<Parts>;

  /// Steps of a slice: each part passes all other ranks once while it is added up, then once more while it is copied.
  struct Steps {
    int begin;
    int end;
  };
  [[nodiscard]] Steps sum_steps() const { return {0, size_ - 1}; }
  [[nodiscard]] Steps copy_steps() const { return {sum_steps().end, 2 * sum_steps().end}; }

  /// The messages of one slice. Several lanes take the slices in turn.
  struct Lane {
    MpiRequests requests;
    std::vector<char> received{};
  };

  /// Adds up the parts of all ranks in rank order, on every rank.
  void sum_all(Part own);
  /// Takes all slices through the steps.
  void run_ring(const Slices& slices, Steps steps, const TaskContext& call_context);
  /// Sends one part to the next rank and receives another from the previous one.
  void begin_step(Lane& lane, const Parts& parts, int step);
  void end_step(Lane& lane, const Parts& parts, int step, const TaskContext& call_context);
  [[nodiscard]] bool sums(int step) const { return step < sum_steps().end; }
  /// The part that a rank receives in a step; the next step sends it on.
  [[nodiscard]] Part received_part(const Parts& parts, int step) const { return parts[index(rank_ - step - 2)]; }

  [[nodiscard]] Slices slices_of(Part whole) const;
  /// \param tensor  P equal parts in sequence.
  [[nodiscard]] Slices slices_of_rows(const at::Tensor& tensor) const;
  [[nodiscard]] Parts split_into_parts(Part whole) const;
  /// Calls each(begin, bytes) for slices of about equal size.
  template <typename Each>
  void in_slices(int64_t bytes, const Each& each) const;
  [[nodiscard]] size_t index(int rank) const { return static_cast<size_t>((rank % size_ + size_) % size_); }
  void reduce_into(char* into, const char* from, int64_t bytes) const;

  std::shared_ptr<MpiHandshake> handshake_;
  std::vector<Lane> lanes_;
  int rank_ = 0;
  int size_ = 1;
  // Dtype and reduction of the pending operation.
  at::ScalarType dtype_ = at::kFloat;
  ReduceOp op_ = ReduceOp::sum;
};

}  // namespace accelerate::comm
