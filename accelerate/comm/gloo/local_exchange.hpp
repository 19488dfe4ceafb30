// SPDX-License-Identifier: Apache-2.0
// Private: collectives of ranks on one machine, through memory that they share.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "accelerate/comm/core/collective_fingerprint.hpp"
#include "accelerate/comm/core/reduce_op.hpp"
#include "accelerate/comm/core/worker_thread.hpp"
#include "accelerate/comm/gloo/call_options.hpp"
#include "accelerate/comm/gloo/shared_memory.hpp"

namespace accelerate::comm {

/// A tensor passes through the shared memory in blocks. In a round each rank writes its block, waits for those of the
/// others, and reads them. All ranks compute a sum in the order of the ranks, so it has the same bits everywhere. Only
/// a sum of two NaN may have the payload of either.
///
/// The first round of an operation also compares its fingerprints. If the calls of two ranks do not match, wait()
/// throws FingerprintMismatch on all ranks.
///
/// Operations run in the order of the calls, on a worker thread or on the thread that waits. Tensors are dense tensors
/// on the CPU.
class LocalExchange {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  /// More ranks would require more shared memory than many containers have.
  static constexpr int64_t kMaxRanks = 64;

  /// \param memory   Shared by `ranks` ranks, each with an object of this class.
  /// \param timeout  Of an operation, unless wait() has another one.
  LocalExchange(std::shared_ptr<SharedMemory> memory, int64_t rank, int64_t ranks, std::chrono::milliseconds timeout);
  LocalExchange(const LocalExchange&) = delete;
  LocalExchange& operator=(const LocalExchange&) = delete;
  /// Ends the operations for which nobody waited, because other ranks may wait for them.
  ~LocalExchange();

  /// \param tensor  Contiguous; replaced by the reduction.
  WorkPtr all_reduce(const at::Tensor& tensor, ReduceOp op, CallOptions options);
  /// \param tensor  Contiguous; replaced by the reduction on the root, unchanged on other ranks.
  WorkPtr reduce(const at::Tensor& tensor, ReduceOp op, int64_t root, CallOptions options);
  /// \param tensor  Contiguous; replaced by the root's.
  WorkPtr broadcast(const at::Tensor& tensor, int64_t root, CallOptions options);
  /// \param output  Contiguous, [n]; the reduction of the elements rank * n to rank * n + n - 1 of the inputs.
  /// \param input   Contiguous, ranks * n elements, which are not changed.
  WorkPtr reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op, CallOptions options);
  /// \param output  Contiguous, ranks * n elements.
  /// \param input   Contiguous, n elements; may be this rank's elements of the output.
  WorkPtr all_gather(const at::Tensor& output, const at::Tensor& input, CallOptions options);
  WorkPtr barrier(CallOptions options);

  /// Drops the operations that have not ended. Later ones fail at once.
  void abandon() noexcept;

 private:
  struct Call;
  class Rounds;
  using Operate = std::function<void(Rounds&)>;

  WorkPtr submit(c10d::OpType type, std::vector<at::Tensor> tensors, const CollectiveFingerprint& own,
                 CallOptions options, Operate operate);

  std::shared_ptr<Rounds> rounds_;  // shared with the worker's jobs, which may outlive this object
  std::chrono::milliseconds timeout_;
  std::shared_ptr<WorkerThread> worker_;
};

}  // namespace accelerate::comm
