// SPDX-License-Identifier: Apache-2.0
// Tensor operations over one communicator, each after a handshake. Private to the mpi backend.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "accelerate/comm/mpi/handshake.hpp"

namespace accelerate::comm {

/// Context of one operation.
struct MpiCallContext {
  const AnnouncedOperation& call;
  const TaskContext& call_context;
};

/// Owns the communicator. Tensors must be contiguous CPU tensors.
/// \throws as MpiHandshake does.
class MpiChannel {
 public:
  using Tensors = std::vector<at::Tensor>;

  MpiChannel(std::shared_ptr<MpiRuntime> runtime, MPI_Comm communicator);
  MpiChannel(const MpiChannel&) = delete;
  MpiChannel& operator=(const MpiChannel&) = delete;
  ~MpiChannel();

  /// Between few ranks all operations except reduce and split consist of messages, and can be abandoned at the
  /// deadline. Reduce, split, and all operations between many ranks are MPI calls, which cannot be abandoned after the
  /// handshake.
  [[nodiscard]] bool has_few_ranks() const { return size_ <= MpiHandshake::kFewRanks; }

  /// MPI's all-reduce, for many ranks.
  void all_reduce(const at::Tensor& tensor, MpiRuntime::Reduction reduction, const MpiCallContext& call_context);
  void broadcast(const Tensors& tensors, int root, const MpiCallContext& call_context);
  void all_gather(const at::Tensor& output, const at::Tensor& input, const MpiCallContext& call_context);
  void all_gather_list(const Tensors& outputs, const at::Tensor& input, const MpiCallContext& call_context);
  /// \param output_rows, input_rows  Rows of the first dimension per rank; empty for equal parts.
  void all_to_all(const at::Tensor& output, const std::vector<int64_t>& output_rows, const at::Tensor& input,
                  const std::vector<int64_t>& input_rows, const MpiCallContext& call_context);
  void barrier(const MpiCallContext& call_context);
  void reduce(const at::Tensor& tensor, ReduceOp op, int root, const MpiCallContext& call_context);
  /// MPI's reduce-scatter, for many ranks. `input` has P * n elements, `output` has n.
  void reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                      const MpiCallContext& call_context);
  [[nodiscard]] MPI_Comm split(int color, int key, const MpiCallContext& call_context);

  [[nodiscard]] MpiRuntime& runtime() const { return *runtime_; }
  [[nodiscard]] const std::shared_ptr<MpiRuntime>& shared_runtime() const { return runtime_; }
  [[nodiscard]] const std::shared_ptr<MpiHandshake>& handshake() const { return handshake_; }
  [[nodiscard]] MPI_Comm communicator() const { return comm_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

 private:
  void run_handshake(const MpiCallContext& call_context) {
    handshake_->run(call_context.call, {}, call_context.call_context);
  }
  void gather_into(const std::vector<char*>& places, const at::Tensor& input, const MpiCallContext& call_context);
  /// Returns the start of each rank's part and the end of the last part, in bytes.
  [[nodiscard]] std::vector<int64_t> offsets(const at::Tensor& tensor, const std::vector<int64_t>& rows) const;

  std::shared_ptr<MpiRuntime> runtime_;
  MPI_Comm comm_;
  int rank_ = 0;
  int size_ = 1;
  std::shared_ptr<MpiHandshake> handshake_;
  MpiRequests requests_;
};

}  // namespace accelerate::comm
