// SPDX-License-Identifier: Apache-2.0
// Private: collectives of a few ranks, by messages between all pairs of ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
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

namespace accelerate::comm {

/// Every rank sends its terms or its part directly to each other rank, in one step. Gloo's ring needs twice the time or
/// more for small tensors, and LibTorch has no reduce_scatter over gloo with a deadline. All ranks compute a sum in the
/// order of the ranks, so it has the same bits everywhere.
///
/// The messages are posted by the call. The rest of an operation runs in the order of the calls, on a worker thread or
/// on the thread that waits. Tensors are dense tensors on the CPU.
///
/// A second message has the fingerprint of the call. If the calls of two ranks do not match, wait() throws
/// FingerprintMismatch.
class DirectExchange {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  /// Above this number an operation of a ring has fewer messages.
  static constexpr int64_t kMaxRanks = 4;

  /// \param backend  Its send() and recv() transfer the messages. Must outlive this object.
  /// \param timeout  Of an operation, unless wait() has another one.
  DirectExchange(c10d::Backend& backend, std::chrono::milliseconds timeout);
  DirectExchange(const DirectExchange&) = delete;
  DirectExchange& operator=(const DirectExchange&) = delete;
  /// Ends the operations for which nobody waited, because other ranks may wait for them.
  ~DirectExchange();

  /// \param tensor  Contiguous; replaced by the reduction. Each rank receives the tensors of all others.
  WorkPtr all_reduce(const at::Tensor& tensor, ReduceOp op, const CallOptions& options);
  /// \param output  Contiguous, [n]; the reduction of the elements rank * n to rank * n + n - 1 of the inputs.
  /// \param input   Contiguous, ranks * n elements, which are not changed.
  WorkPtr reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op, const CallOptions& options);
  /// \param output  Contiguous, ranks * n elements.
  /// \param input   Contiguous, n elements; may be this rank's elements of the output.
  WorkPtr all_gather(const at::Tensor& output, const at::Tensor& input, const CallOptions& options);

  using BeginWork = std::function<WorkPtr(uint32_t tag)>;

  /// Compares the fingerprints of an operation of LibTorch. The caller must wait for the returned work.
  /// \param begin_work  Begins the operation with the tag. Calls that do not match have other tags.
  WorkPtr compare(c10d::OpType type, const CollectiveFingerprint& own, const at::Tensor& tensor,
                  const CallOptions& options, const BeginWork& begin_work);

  /// Drops the operations that have not ended. Later ones fail at once.
  void abandon() noexcept;

 private:
  struct Messages;
  struct Call;
  using TensorOfRank = std::function<at::Tensor(int64_t)>;
  using Finish = std::function<void(const TaskContext&)>;

  /// Posts a message from and to every other rank.
  Messages post(int tag, const TensorOfRank& receives, const TensorOfRank& sends);
  /// Begins an operation: sends its fingerprint to the other ranks.
  Call begin(const CollectiveFingerprint& own, const CallOptions& options);
  WorkPtr submit(c10d::OpType type, std::vector<at::Tensor> tensors, const CallOptions& options, Finish finish);
  /// Returns a term of a sum for each rank: `own`, and memory for those of the other ranks.
  [[nodiscard]] std::vector<at::Tensor> terms_beside(const at::Tensor& own) const;

  c10d::Backend& backend_;
  int64_t rank_, ranks_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<WorkerThread> worker_;
  std::atomic<uint32_t> operations_ = 0;  // of one group have one order on all ranks
};

}  // namespace accelerate::comm
