// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace accelerate::checkpoint {

/// Where an Accelerator keeps its checkpoints; Hugging Face Accelerate's class of that name.
struct ProjectConfiguration {
  /// Automatically named checkpoints are in its folder "checkpoints".
  std::filesystem::path project_dir{};
  /// Number of newest checkpoints to keep, at least 1. If unset, all are kept.
  std::optional<int64_t> total_limit{};
  /// One process of each machine saves, not one of the job, checkpoints and weights: for disks that machines do not
  /// share.
  bool save_on_each_node = false;
};

}  // namespace accelerate::checkpoint
