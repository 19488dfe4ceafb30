// SPDX-License-Identifier: Apache-2.0
// Private: a copy of a checkpoint's content that training does not modify.
#pragma once

#include "accelerate/checkpoint/checkpoint_content.hpp"
#include "accelerate/device/download.hpp"

namespace accelerate::checkpoint {

struct Snapshot {
  CheckpointContent content{};  ///< on the CPU; data from an accelerator is valid after arrive()
  device::Download download{};

  /// Waits for pending copies; callable from any thread.
  void arrive() { download.arrive(); }
};

/// Copies every tensor. For accelerator tensors the current stream waits for the copies and the host does not, so the
/// sources may be modified afterwards.
/// \param buffers  Memory of an earlier, completed snapshot, reused where it fits.
[[nodiscard]] Snapshot snapshot(const CheckpointContent& content, CheckpointContent buffers = {});

}  // namespace accelerate::checkpoint
