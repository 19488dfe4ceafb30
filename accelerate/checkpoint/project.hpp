// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace accelerate::checkpoint {

/// Location and retention of an Accelerator's checkpoints, like Hugging Face Accelerate's ProjectConfiguration.
struct ProjectConfiguration {
  /// Automatically named checkpoints are written to its subfolder "checkpoints".
  std::filesystem::path project_dir{};
  /// Number of newest checkpoints to keep, at least 1. If unset, all are kept.
  std::optional<int64_t> total_limit{};
  /// If true, one process per machine saves checkpoints and weights instead of one per job: for machines that do not
  /// share disks.
  bool save_on_each_node = false;
};

}  // namespace accelerate::checkpoint
