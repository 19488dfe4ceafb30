// SPDX-License-Identifier: Apache-2.0
// A checkpoint's files, written to a folder by the ranks that have a part in it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string_view>

#include "accelerate/archive/manifest.hpp"
#include "accelerate/checkpoint/content.hpp"

namespace accelerate::checkpoint {

struct Part {
  int64_t rank = 0;     ///< of the job: its own random states and open window
  int64_t writer = 0;   ///< of so many that share out what all ranks have alike
  int64_t writers = 1;  ///< negative writer: nothing of it
  c10::DeviceType accelerator = c10::DeviceType::CPU;
  /// Models that are larger are shared out over several files, and an index.
  uint64_t most_bytes = std::numeric_limits<uint64_t>::max();
  bool durable = true;  ///< every file is on the disk when write() returns
};

/// Writes this rank's part of the files, several at a time.
/// returns   files, parts and ranges that it wrote; nothing else in it is set
/// Throws Error (io) where the system refuses, (usage) for tensors that no format takes. What was written stays.
[[nodiscard]] archive::Manifest write(const std::filesystem::path& folder, const Content& content, const Part& part,
                                      std::string_view operation);

/// Adds a part, or its files to the part of that kind and index: one may lie in several files, of several ranks.
void add_part(archive::Manifest& manifest, archive::ManifestPart part);

/// Adds what lies in the folder and is in no manifest yet: files of the user's hooks. Throws Error (usage) for folders
/// in it.
/// durable   they are brought to the disk
void add_strangers(const std::filesystem::path& folder, archive::Manifest& manifest, bool durable,
                   std::string_view operation);

}  // namespace accelerate::checkpoint
