// SPDX-License-Identifier: Apache-2.0
// Content of a checkpoint folder. The manifest is written last, so a folder with a manifest is complete.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/archive/origin.hpp"

namespace accelerate::archive {

struct ManifestFile {
  std::string name{};  ///< in the folder
  uint64_t bytes = 0;
  std::string checksum{};  ///< checksum_of() its bytes
  bool operator==(const ManifestFile&) const = default;
};

/// A saved object: the first model, the second optimizer, rank 3's random states.
struct ManifestPart {
  std::string kind{};  ///< "model", "optimizer", "scheduler", "random_states", ...
  int64_t index = 0;   ///< in order of preparation, or the rank
  std::vector<std::string> files{};
  bool operator==(const ManifestPart&) const = default;
};

/// Elements `begin` to `end` of a tensor in row-major order, stored in a file under a name. A complete tensor has one
/// range from 0 to its number of elements; a shard is another range of the same tensor.
struct ManifestRange {
  std::string tensor{};           ///< "model.0/first.weight"
  std::vector<uint64_t> sizes{};  ///< of the whole tensor
  uint64_t begin = 0, end = 0;
  std::string file{};
  std::string key{};  ///< its name in the file
  bool operator==(const ManifestRange&) const = default;
};

struct Manifest {
  static constexpr int64_t kCurrentVersion = 1;
  int64_t version = kCurrentVersion;  ///< of the format
  std::string library{};              ///< writer of the checkpoint
  int64_t world_size = 1, step = 0, epoch = 0;
  /// "dp_replicate 2 x tp 2": the mesh of the saving job if some of its ranks read the same batches; otherwise empty.
  std::string mesh{};
  std::string id{};  ///< if each machine has its own folder, equal in all folders of a save; otherwise empty
  std::vector<ManifestFile> files{};
  std::vector<ManifestPart> parts{};
  std::vector<ManifestRange> ranges{};
  bool operator==(const Manifest&) const = default;
};

inline constexpr std::string_view kManifestName = "manifest.json";

[[nodiscard]] std::string write_manifest(const Manifest& manifest);

/// True if the text begins like the result of write_manifest() of any version. The rest may be truncated: the text
/// after the library's name is not checked.
[[nodiscard]] bool starts_like_manifest(std::string_view text);

/// \throws Error (data) with path and member if the text is not a manifest, has a newer version, lacks a member, or
///         names a file outside its folder, twice, or without listing it.
[[nodiscard]] Manifest parse_manifest_file(std::string_view text, const Origin& origin);

/// True if a file in a checkpoint folder may have this name: no path, no "." or "..", no control character.
[[nodiscard]] bool is_file_name(std::string_view name);

}  // namespace accelerate::archive
