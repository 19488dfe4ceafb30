// SPDX-License-Identifier: Apache-2.0
// Private: a copy of what a checkpoint holds that training does not change.
#pragma once

#include "accelerate/checkpoint/content.hpp"
#include "accelerate/device/download.hpp"

namespace accelerate::checkpoint {

struct Snapshot {
  Content content{};  ///< on the CPU; what comes from an accelerator is there after arrive()
  device::Download download{};

  /// The host waits for what is on its way; from any thread.
  void arrive() { download.arrive(); }
};

/// Copies every tensor. Of accelerators' the current stream waits for the copies, the host does not: whatever is done
/// to them next comes after.
/// buffers   of an earlier snapshot that arrived, used again where they fit
[[nodiscard]] Snapshot snapshot(const Content& content, Content buffers = {});

}  // namespace accelerate::checkpoint
