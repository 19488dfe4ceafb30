// SPDX-License-Identifier: Apache-2.0
// A process group: the same handle for every backend.
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

/// A pending collective. If the handle is destroyed without wait(), the collective continues and its tensors are kept
/// alive. Not thread-safe.
class Pending {
 public:
  Pending() = default;  ///< already complete
  explicit Pending(std::shared_ptr<PendingOperation> operation) : operation_(std::move(operation)) {}

  /// Waits until the result is ready (on an accelerator: visible to the current stream), at most for the group's
  /// timeout.
  /// \throws Error (peer) for a lost peer, a mismatch or an expired timeout. The group is unusable afterwards.
  void wait();
  /// As above, with a separate time limit.
  void wait(std::chrono::milliseconds timeout);
  /// True if wait() would return or throw immediately.
  [[nodiscard]] bool done() const;

 private:
  std::shared_ptr<PendingOperation> operation_;
};

/// Ranks 0 .. size()-1 of one group. Copies share the connection. A default-constructed group has one rank and no
/// connection: operations do not change their input, and returned tensors are copies.
///
/// An in-place operation increments the tensor's version, as LibTorch's in-place operations do: backward throws if the
/// autograd graph has saved that tensor. In broadcast(), the root's tensor keeps its values and its version.
///
/// All ranks of the group call the same operations in the same order. Tensors may be on the CPU or on the group's
/// device; non-contiguous, empty, bool and bfloat16 tensors are supported. Functions with suffix _async do not block;
/// their results are valid after wait().
///
/// Thread safety: several threads may call a group, but its operations need one order on all ranks. Threads without a
/// common order use a group each, made by duplicate().
class Group {
 public:
  Group();
  explicit Group(std::shared_ptr<GroupCore> core);

  [[nodiscard]] int64_t rank() const;
  [[nodiscard]] int64_t size() const;
  /// "single", "mpi", "gloo", "threads", or with GPUs a pair: "nccl+mpi", "nccl+gloo".
  [[nodiscard]] const std::string& backend() const;
  /// This rank within the whole job, for messages.
  [[nodiscard]] const RankContext& place() const;
  /// Time limit of an operation.
  [[nodiscard]] std::chrono::milliseconds timeout() const;
  /// Device of accelerator tensors. Unset if the group supports only CPU tensors.
  [[nodiscard]] std::optional<at::Device> device() const;
  /// LibTorch's handle, for code that uses c10d. Null in a group of one rank without a connection.
  [[nodiscard]] c10::intrusive_ptr<c10d::ProcessGroup> process_group() const;

  /// \param tensor  Replaced in place by the reduction over all ranks. If one rank has a NaN, max and min are NaN with
  ///   mpi and threads; gloo and NCCL may drop the NaN.
  /// \throws Error (usage) if the reduction is not defined for the dtype, such as the mean of integers.
  void all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum) const;
  [[nodiscard]] Pending all_reduce_async(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum,
                                         Execution execution = Execution::eager) const;

  /// \param tensor  Replaced in place by the root's tensor.
  void broadcast(const at::Tensor& tensor, int64_t root = 0) const;
  [[nodiscard]] Pending broadcast_async(const at::Tensor& tensor, int64_t root = 0) const;

  /// \param tensor  [n_r, ...] on rank r; a 0-dim tensor counts as [1].
  /// \returns [n_0 + ... + n_{P-1}, ...] in rank order, on every rank; first dimensions may differ.
  [[nodiscard]] at::Tensor all_gather(const at::Tensor& tensor) const;
  /// As all_gather(), but returns one tensor [n_r, ...] per rank.
  [[nodiscard]] std::vector<at::Tensor> all_gather_list(const at::Tensor& tensor) const;
  /// \param output  [P * n, ...]; valid after wait().
  /// \param input   [n, ...], with the same shape on all ranks.
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

  /// Returns after the tensor's memory may be reused.
  void send(const at::Tensor& tensor, int64_t to, int64_t tag = 0) const;
  /// \param tensor  Must have the sender's shape and dtype; filled in place.
  void recv(const at::Tensor& tensor, int64_t from, int64_t tag = 0) const;
  /// As send() and recv(), but return before the message has been transferred. Messages of one sender, receiver and tag
  /// match in the order of the calls; messages with different tags need no order on the CPU. NCCL executes all messages
  /// of a group in the order of the calls, so on a GPU two ranks call their common sends and receives in the same
  /// order. The tensor must not be modified, or read after recv_async(), before wait().
  /// \returns a handle that must be kept until wait() has returned: over the network gloo drops the message with its
  ///   handle, and its done() is false until then.
  [[nodiscard]] Pending send_async(const at::Tensor& tensor, int64_t to, int64_t tag = 0) const;
  [[nodiscard]] Pending recv_async(const at::Tensor& tensor, int64_t from, int64_t tag = 0) const;

  /// Returns after all ranks have called it.
  void barrier() const;

  /// Checks the group locally, without communication.
  ///
  /// \param operation  Name of the operation for the message.
  /// \throws Error (peer) if the group is broken, or if an asynchronous operation on the accelerator has failed, so
  ///   that its result is invalid.
  void check(std::string_view operation) const;

  /// Objects as bytes; lengths may differ between ranks.
  [[nodiscard]] std::vector<std::string> all_gather_bytes(std::string_view bytes) const;
  [[nodiscard]] std::vector<std::string> gather_bytes(std::string_view bytes, int64_t root = 0) const;
  [[nodiscard]] std::string broadcast_bytes(std::string_view bytes, int64_t root = 0) const;

  /// Returns a new group of the ranks with the same color, ordered by their rank here. Collective.
  ///
  /// \param ranks_name  Kind of the ranks for errors of the new group and its duplicates. With "tensor parallel" an
  ///   error contains "waited 60 s in operation 3 ([4] float32) over the 2 tensor parallel ranks". If empty, errors do
  ///   not name the group.
  /// \throws Error (peer) if a rank does not join.
  [[nodiscard]] Group split(int64_t color, std::string_view ranks_name = {}) const;
  /// Returns the same ranks with a separate connection, and with the name that split() gave to them. Its operations
  /// need no particular order relative to those of this group. Collective.
  [[nodiscard]] Group duplicate() const;

 private:
  friend Group with_device(const Group& group, at::Device device);
  std::shared_ptr<GroupCore> core_;
};

/// Connects all ranks of the job. For a job of one process it returns a group without a connection, unless
/// options.force_group is true.
Group connect(const env::ProcessEnv& process, const ConnectOptions& options = {});

/// Returns a group of the same ranks with separate connections that also support tensors of an accelerator. A
/// collective call: all ranks of the group call it, each with its own device. Returns the argument if it already
/// supports that device, or if it is a group of one rank without a connection. For ranks that are threads, and for
/// groups that were created before their device was chosen; connect() does the same for processes.
/// \throws Error (environment) if no backend supports that device type.
Group with_device(const Group& group, at::Device device);

/// Runs rank_main on world_size threads of this process, one rank each of a "threads" group, to simulate world_size
/// processes. Returns after all threads have ended, and rethrows the first exception.
void run_threads(int64_t world_size, const std::function<void(Group)>& rank_main,
                 std::chrono::milliseconds timeout = std::chrono::seconds(60));

}  // namespace accelerate::comm
