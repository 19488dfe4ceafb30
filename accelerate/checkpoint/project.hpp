// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace accelerate::checkpoint {

/// Where an Accelerator keeps its checkpoints; Hugging Face Accelerate's class of that name.
struct ProjectConfiguration {
  /// Checkpoints that name themselves lie in its folder "checkpoints".
  std::filesystem::path project_dir{};
  /// Of those so many are kept, the newest, at least 1; unset: all.
  std::optional<int64_t> total_limit{};
  /// One process of each machine saves, not one of the job, checkpoints and weights: for disks that machines do not
  /// share.
  bool save_on_each_node = false;
};

}  // namespace accelerate::checkpoint
