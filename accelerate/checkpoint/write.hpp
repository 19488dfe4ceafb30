// SPDX-License-Identifier: Apache-2.0
// Writes a checkpoint's files to a folder. Several ranks can write parts of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string_view>

#include "accelerate/archive/manifest.hpp"
#include "accelerate/checkpoint/checkpoint_content.hpp"

namespace accelerate::checkpoint {

struct Part {
  int64_t rank = 0;     ///< in the job; determines the random states and the open window
  int64_t writer = 0;   ///< index among the writers of common data; negative for none of it
  int64_t writers = 1;  ///< number of writers of common data
  c10::DeviceType accelerator = c10::DeviceType::CPU;
  /// Larger models are split into several files with an index.
  uint64_t max_bytes = std::numeric_limits<uint64_t>::max();
  bool durable = true;  ///< flush every file to disk before write_checkpoint_part() returns
};

/// Writes this rank's part of the files, several at a time.
/// \returns the written files, parts and ranges; other fields are unset.
/// \throws Error (io) if the system refuses; Error (usage) for tensors that no format supports. Written files remain.
[[nodiscard]] archive::Manifest write_checkpoint_part(const std::filesystem::path& folder,
                                                      const CheckpointContent& content, const Part& part,
                                                      std::string_view operation);

/// Adds a part, or its files to the existing part of that kind and index, which may consist of files of several ranks.
void add_part(archive::Manifest& manifest, archive::ManifestPart part);

/// Adds files in the folder that are not in the manifest yet, from users' hooks. \throws Error (usage) for subfolders.
/// \param durable  Flush them to disk.
void add_foreign_files(const std::filesystem::path& folder, archive::Manifest& manifest, bool durable,
                       std::string_view operation);

}  // namespace accelerate::checkpoint
