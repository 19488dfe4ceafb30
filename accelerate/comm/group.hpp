// SPDX-License-Identifier: Apache-2.0
// A process group: one value handle for every backend.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/comm/core/connect_options.hpp"
#include "accelerate/comm/core/reduce_op.hpp"
#include "accelerate/env/process_env.hpp"

namespace c10d {
class ProcessGroup;
}

namespace accelerate::comm {

struct GroupCore;
struct PendingOperation;

/// A collective under way. Destroying it unwaited lets the collective go on; its tensors are kept alive.
class Pending {
 public:
  Pending() = default;  ///< nothing to wait for
  explicit Pending(std::shared_ptr<PendingOperation> operation) : operation_(std::move(operation)) {}

  /// Waits until the result is ready (on an accelerator: visible to the current stream), for at most the group's
  /// timeout. \throws Error (peer) for a lost peer, a mismatch or an expired timeout. The group is unusable afterwards.
  void wait();
  /// The same with a deadline of its own.
  void wait(std::chrono::milliseconds timeout);
  [[nodiscard]] bool done() const;

 private:
  std::shared_ptr<PendingOperation> operation_;
};

/// Ranks 0 .. size()-1 of one group. Copies share the connection. A default-made group has one rank and no connection:
/// every operation leaves its input as it is, and what returns tensors returns copies.
///
/// An operation that changes a tensor in place counts in the tensor's version, as LibTorch's in-place operations do:
/// a graph of autograd that saved the tensor throws in backward. A root's tensor in broadcast() keeps its values and
/// its version.
///
/// All ranks of the group call the same operations in the same order. Tensors may be on the CPU or on
/// the group's device; non-contiguous, empty, bool and bfloat16 are fine. Names ending in _async return at once.
class Group {
 public:
  Group();
  explicit Group(std::shared_ptr<GroupCore> core);

  [[nodiscard]] int64_t rank() const;
  [[nodiscard]] int64_t size() const;
  /// "single", "mpi", "gloo", "threads", or the pair "nccl+mpi", "nccl+gloo" where GPUs are used.
  [[nodiscard]] const std::string& backend() const;
  /// This rank in the whole job, for messages.
  [[nodiscard]] const Place& place() const;
  [[nodiscard]] std::chrono::milliseconds timeout() const;
  /// Of accelerator tensors; unset: the group carries those of the CPU only.
  [[nodiscard]] std::optional<at::Device> device() const;
  /// LibTorch's own handle, for code that wants c10d; null in a group of one without connection.
  [[nodiscard]] c10::intrusive_ptr<c10d::ProcessGroup> process_group() const;

  /// tensor   changed in place to the reduction over all ranks; mean of an integer tensor is refused. Where one rank
  /// has
  ///          a NaN the max and min are NaN over mpi and threads; gloo and NCCL may lose it.
  void all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum) const;
  [[nodiscard]] Pending all_reduce_async(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum,
                                         Execution execution = Execution::eager) const;

  /// \param tensor  Replaced in place by the root's tensor.
  void broadcast(const at::Tensor& tensor, int64_t root = 0) const;
  [[nodiscard]] Pending broadcast_async(const at::Tensor& tensor, int64_t root = 0) const;

  /// \param tensor  [n_r, ...] on rank r; a 0-dim tensor counts as [1].
  /// \returns [n_0 + ... + n_{P-1}, ...] in rank order, on every rank; first dimensions may differ.
  [[nodiscard]] at::Tensor all_gather(const at::Tensor& tensor) const;
  /// The same as a list, one tensor of a rank each, [n_r, ...].
  [[nodiscard]] std::vector<at::Tensor> all_gather_list(const at::Tensor& tensor) const;
  /// output    [P * n, ...], written when the handle is waited for
  /// input     [n, ...], of one shape on all ranks
  [[nodiscard]] Pending all_gather_async(const at::Tensor& output, const at::Tensor& input) const;

  /// \returns the tensors [n_r, ...] of all ranks on the root; an empty list on other ranks.
  [[nodiscard]] std::vector<at::Tensor> gather(const at::Tensor& tensor, int64_t root = 0) const;

  /// \param tensors  On the root, one tensor per rank (shapes may differ); ignored on other ranks.
  /// \returns this rank's tensor.
  [[nodiscard]] at::Tensor scatter(const std::vector<at::Tensor>& tensors, int64_t root = 0) const;

  /// \param tensor  Replaced in place by the reduction on the root; unspecified content on other ranks afterwards.
  void reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum, int64_t root = 0) const;

  /// \param input  [P * n, ...]
  /// \returns [n, ...], the reduction over all ranks of rows rank*n to rank*n + n-1.
  [[nodiscard]] at::Tensor reduce_scatter(const at::Tensor& input, ReduceOp op = ReduceOp::sum) const;
  [[nodiscard]] Pending reduce_scatter_async(const at::Tensor& output, const at::Tensor& input,
                                             ReduceOp op = ReduceOp::sum) const;

  /// \param tensors  One tensor per receiving rank; shapes may differ. \returns one tensor per sending rank.
  [[nodiscard]] std::vector<at::Tensor> all_to_all(const std::vector<at::Tensor>& tensors) const;

  void send(const at::Tensor& tensor, int64_t to, int64_t tag = 0) const;
  /// \param tensor  Must have the sender's shape and dtype; filled in place.
  void recv(const at::Tensor& tensor, int64_t from, int64_t tag = 0) const;

  void barrier() const;

  /// Checks the group locally, without communication.
  ///
  /// \param asked_by  Name of the operation for the message.
  /// \throws Error (peer) if the group is broken, or if an asynchronous operation on the accelerator has failed, so
  /// that
  ///         its result is invalid.
  void check(std::string_view asked_by) const;

  /// Objects as bytes; lengths may differ between ranks.
  [[nodiscard]] std::vector<std::string> all_gather_bytes(std::string_view bytes) const;
  [[nodiscard]] std::vector<std::string> gather_bytes(std::string_view bytes, int64_t root = 0) const;
  [[nodiscard]] std::string broadcast_bytes(std::string_view bytes, int64_t root = 0) const;

  /// A new group of the ranks that give the same color, ordered by rank here. All ranks of this group call it.
  [[nodiscard]] Group split(int64_t color) const;
  /// The same ranks over a connection of its own: its operations need no order with this group's.
  [[nodiscard]] Group duplicate() const;

 private:
  friend Group with_device(const Group& group, at::Device device);
  std::shared_ptr<GroupCore> core_;
};

/// The group of all ranks of the job. A job of one process is a default-made Group.
Group connect(const env::ProcessEnv& process, const ConnectOptions& options = {});

/// Returns a group of the same ranks with separate connections that also support tensors of an accelerator. A
/// collective call: all ranks of the group call it, each with its own device. Returns the argument if it already
/// supports that device, or if it is a group of one rank without a connection. For ranks that are threads, and for
/// groups that were created before their device was chosen; connect() does the same for processes.
/// \throws Error (environment) if no backend supports that device type.
Group with_device(const Group& group, at::Device device);

/// Runs rank_main on world_size threads of this process, each with its rank of one "threads" group: a simulation of
/// world_size processes. Returns when all have ended; the exception that was thrown first is rethrown.
void run_threads(int64_t world_size, const std::function<void(Group)>& rank_main,
                 std::chrono::milliseconds timeout = std::chrono::seconds(60));

}  // namespace accelerate::comm
