// SPDX-License-Identifier: Apache-2.0
// Collectives over many tensors at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/comm/group.hpp"
#include "accelerate/gradient/named_tensor.hpp"

namespace accelerate::gradient {

/// Broadcasts all tensors of rank root, in place, in flat pieces of at most cap_bytes. Dtypes and devices may be mixed.
void broadcast_tensors(const comm::Group& group, const std::vector<at::Tensor>& tensors, int64_t root = 0,
                       int64_t cap_bytes = 25 << 20);

/// Replaces every tensor by its mean over all ranks, in place, with one collective per dtype and device. Used by local
/// SGD. Integer tensors are unchanged, because a mean of counts is not a count.
void average_parameters(const comm::Group& group, const std::vector<at::Tensor>& tensors);

struct JoinCoordinator;

/// Broadcasts buffers (BatchNorm's running statistics), as PyTorch does: one broadcast per device for all dtypes, from
/// retained memory. Does nothing without buffers.
class BufferBroadcast {
 public:
  BufferBroadcast() = default;
  /// Compares names, shapes and dtypes across the ranks. \throws an error on every rank that names the first
  /// difference.
  BufferBroadcast(comm::Group group, const std::vector<NamedTensor>& buffers);

  /// Copies all buffers of rank root to the other ranks, in place. Inside an UnevenJoin root is the highest rank that
  /// still has batches.
  ///
  /// If a graph saved a buffer and its values change here, its backward throws, as in PyTorch. A buffer that keeps its
  /// values leaves graphs usable. So do the statistics of batch normalisation (running_mean and running_var) if the
  /// last forward was in training, because its backward does not use them, unless user code wrote to them since that
  /// forward. A forward is in training if it counted a batch in the num_batches_tracked beside the statistics; without
  /// such a buffer, every forward is taken for one. On an accelerator the host waits for a comparison if other code,
  /// such as a graph, holds a buffer.
  void run(int64_t root = 0);
  /// \param now  Returns the current tensors of the same buffers, if a forward replaces them.
  void exchanges(std::function<std::vector<NamedTensor>()> now) { now_ = std::move(now); }
  /// Calls run() if it is due. As in PyTorch, that is before the first forward of all and before each forward after a
  /// synchronised one, also in evaluation.
  /// \param synchronised  True if this forward is in training and its backward will be reduced.
  void before_forward(bool synchronised);
  /// True if the next before_forward() calls run(). Until then ranks may differ.
  [[nodiscard]] bool due() const { return due_; }
  /// Restores the value of due() from a checkpoint. Every rank must pass the same value.
  void resume(bool due) { due_ = due; }

  /// A buffer of this rank and a copy of root's values.
  struct WithRoot {
    at::Tensor own, of_root;
  };
  /// Returns every buffer with the root's values. No buffer changes. Collective.
  ///
  /// \note The copies are ready when the current stream reaches them. The host does not block.
  [[nodiscard]] std::vector<WithRoot> with_root(int64_t root = 0);
  [[nodiscard]] bool empty() const { return packs_.empty(); }
  [[nodiscard]] std::vector<at::Tensor> tensors();

 private:
  struct Known {
    bool is_statistics = false;  ///< true for batch normalisation, by the buffer's name
    int64_t version = 0;         ///< version at the last forward
    size_t least_holders = SIZE_MAX;
    at::Tensor batches{};           ///< num_batches_tracked beside statistics; undefined if there is none
    const void* counter = nullptr;  ///< that tensor at the last forward, and its version
    int64_t counter_version = 0;
    void note(const at::Tensor& buffer);
    /// True if the forward since note() trained the layer with these statistics, and only LibTorch wrote to them.
    [[nodiscard]] bool trained(const at::Tensor& buffer) const;
  };
  // Tensors of one device with their bytes for the transfer.
  struct Pack {
    at::Tensor bytes;
    std::vector<at::Tensor> tensors;
    std::vector<at::Tensor> views;
    std::vector<Known> known{};       ///< one entry per buffer
    [[nodiscard]] bool fits() const;  ///< false if a tensor moved to another dtype or device
  };
  friend class UnevenJoin;
  friend void broadcast_tensors(const comm::Group&, const std::vector<at::Tensor>&, int64_t, int64_t);
  static std::vector<Pack> pack_by_device(const std::vector<at::Tensor>& tensors);
  static Pack pack(std::vector<at::Tensor> tensors);
  static void broadcast(const comm::Group& group, const Pack& pack, int64_t root);
  static void unpack(const Pack& pack);
  void follow();
  void pack_buffers(const std::vector<NamedTensor>& buffers);
  void receive(Pack& pack);
  void note_versions();

  comm::Group group_{};
  std::vector<Pack> packs_{};
  std::function<std::vector<NamedTensor>()> now_{};
  std::string description_{};  ///< lists the buffers, for errors of other ranks
  bool due_ = true;            ///< true if run() is due before the next forward
  JoinCoordinator* join_coordinator_ = nullptr;
  int64_t join_operation_ = 0;
};

}  // namespace accelerate::gradient
