// SPDX-License-Identifier: Apache-2.0
// MPI's calls on tensors, over one communicator. Each blocks, so the mpi backend calls them from its worker thread;
// only an all-reduce between few ranks can be left.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "accelerate/comm/mpi/all_reduce.hpp"
#include "accelerate/comm/mpi/runtime.hpp"

namespace accelerate::comm {

/// Owns the communicator. Tensors are contiguous CPU tensors; failures are thrown as PeerLost.
class MpiChannel {
 public:
  using Tensors = std::vector<at::Tensor>;

  MpiChannel(std::shared_ptr<MpiRuntime> runtime, MPI_Comm communicator);
  MpiChannel(const MpiChannel&) = delete;
  MpiChannel& operator=(const MpiChannel&) = delete;
  ~MpiChannel();

  /// Throws DeadlinePassed where all_reduce_keeps_deadline().
  void all_reduce(const Tensors& tensors, ReduceOp op, MpiAllReduce::Deadline deadline) const;
  [[nodiscard]] bool all_reduce_keeps_deadline() const { return by_messages_ != nullptr; }
  void reduce(const at::Tensor& tensor, ReduceOp op, int root) const;
  /// input [P * n], output [n] elements
  void reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op) const;
  void broadcast(const Tensors& tensors, int root) const;
  void all_gather(const at::Tensor& output, const at::Tensor& input) const;
  void all_gather_list(const Tensors& outputs, const at::Tensor& input) const;
  /// Rows of the first dimension per rank; none: equal parts.
  void all_to_all(const at::Tensor& output, const std::vector<int64_t>& output_rows, const at::Tensor& input,
                  const std::vector<int64_t>& input_rows) const;
  void send(const at::Tensor& tensor, int to, int tag) const;
  void recv(const at::Tensor& tensor, int from, int tag) const;
  void barrier() const;
  [[nodiscard]] std::shared_ptr<MpiChannel> split(int color, int key) const;

  [[nodiscard]] MpiRuntime& runtime() const { return *runtime_; }

 private:
  /// Where each rank's part begins, and where the last ends, in bytes.
  [[nodiscard]] std::vector<int64_t> offsets(const at::Tensor& tensor, const std::vector<int64_t>& rows) const;

  std::shared_ptr<MpiRuntime> runtime_;
  MPI_Comm comm_;
  int rank_ = 0;
  int size_ = 1;
  std::unique_ptr<MpiAllReduce> by_messages_;  ///< between few ranks
};

}  // namespace accelerate::comm
