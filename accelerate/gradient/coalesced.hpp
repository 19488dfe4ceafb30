// SPDX-License-Identifier: Apache-2.0
// Many tensors in one collective.
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

/// Every tensor becomes root's, in place, in flat pieces of at most cap_bytes. Any mix of dtypes and devices.
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
  /// Compares names, shapes and dtypes across the ranks; the error names the first that differs, on every rank.
  BufferBroadcast(comm::Group group, const std::vector<NamedTensor>& buffers);

  /// Every buffer becomes root's, in place. Inside an UnevenJoin root is the highest rank that still has batches.
  ///
  /// If a graph of autograd saved a buffer whose values change here, its backward throws, as in PyTorch. A buffer that
  /// keeps its values leaves graphs usable, and so do the statistics of batch normalisation (running_mean and
  /// running_var, unless user code wrote to them since the last forward), whose training does not use them in backward.
  /// On an accelerator the host waits for a comparison if somebody holds a buffer, as a graph does.
  void run(int64_t root = 0);
  /// \param now  Returns the current tensors of the same buffers, if a forward replaces them.
  void exchanges(std::function<std::vector<NamedTensor>()> now) { now_ = std::move(now); }
  /// PyTorch's rule: run() before the first forward of all and before each one that follows a synchronised forward, in
  /// evaluation too. synchronised: this one trains, and its backward will be reduced.
  void before_forward(bool synchronised);
  /// The next before_forward() runs: until then ranks may differ.
  [[nodiscard]] bool due() const { return due_; }
  /// Restores what due() was when a checkpoint was saved. Every rank must give the same value.
  void resume(bool due) { due_ = due; }

  /// A buffer of this rank and a copy of the root's values of it.
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
    bool is_statistics = false;  ///< of batch normalisation, by its name
    int64_t version = 0;         ///< at the last forward
    size_t least_holders = SIZE_MAX;
  };
  // Tensors of one device with their bytes for the transfer.
  struct Pack {
    at::Tensor bytes;
    std::vector<at::Tensor> tensors;
    std::vector<at::Tensor> views;
    std::vector<Known> known{};       ///< of each buffer
    [[nodiscard]] bool fits() const;  ///< no tensor has moved to another dtype or device
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
  std::string what_{};  ///< these buffers, for messages about peers
  bool due_ = true;     ///< before the next forward
  JoinCoordinator* join_coordinator_ = nullptr;
  int64_t join_operation_ = 0;
};

}  // namespace accelerate::gradient
