// SPDX-License-Identifier: Apache-2.0
// Checkpoint folders that are complete or do not exist.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/archive/manifest.hpp"
#include "accelerate/base/file_descriptor.hpp"

namespace accelerate::archive {

/// An unfinished folder beside its final path. Until commit() it is not found as a checkpoint, and a crash leaves the
/// final path unchanged.
///
/// \throws Error (io) if the system refuses; Error (usage) if another process is saving to the same path. On a file
///         system without locks this is not detected: every unfinished folder there counts as left by a killed process.
class AtomicFolder {
 public:
  /// \param place      Path of the finished folder without a trailing slash; its parent is created.
  /// \param operation  Name of the user's call for errors.
  AtomicFolder(std::filesystem::path place, std::string_view operation);
  /// Removes the folder and its content unless commit() succeeded.
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  /// Path of the unfinished folder, to write files to.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// Writes the manifest and moves the folder to its path, replacing a previous one. Files in the previous folder that
  /// do not belong to the checkpoint are kept.
  /// \param durable  If true, the folder survives a power failure; its files must have been flushed before.
  void commit(const Manifest& manifest, bool durable = true);

 private:
  std::filesystem::path place_, path_;
  std::string operation_;
  std::vector<std::filesystem::path> created_parents_;  // see make_folders()
  base::FileDescriptor lock_;
};

/// True if the folder has a manifest.json that begins like one of this library, complete or truncated.
[[nodiscard]] bool has_own_manifest(const std::filesystem::path& folder);

/// Returns the reason why an existing folder is not a checkpoint. Returns no value if its manifest.json begins like one
/// of this library (complete or truncated), or if it is a folder of Hugging Face Accelerate.
[[nodiscard]] std::optional<std::string> not_a_checkpoint_reason(const std::filesystem::path& place);

/// \throws Error (usage) if replacing the path would lose data: it is neither empty nor a checkpoint folder, or has
///         subfolders.
void check_replaceable(const std::filesystem::path& place, std::string_view operation);

/// File in an unfinished folder, locked by the process that writes the folder.
inline constexpr std::string_view kLockName = ".lock";

/// Restores a complete checkpoint to its path if a process was killed between moving the old one aside and moving the
/// new one into place. This happens only on file systems that cannot exchange two names.
void recover(const std::filesystem::path& place);

/// Calls recover() for all numbered checkpoints in `parent`.
void recover_numbered(const std::filesystem::path& parent);

/// Removes a checkpoint so that a partial one is never visible.
/// \returns files in the folder that do not belong to it; they are kept.
std::vector<std::filesystem::path> remove_checkpoint(const std::filesystem::path& folder);

/// Removes the remains of killed processes at numbered checkpoints in `parent`: unfinished folders that no process
/// holds, and folders that were being removed. Keeps folders that recover() would restore, and folders with names that
/// this library does not give.
void remove_leftovers(const std::filesystem::path& parent);

/// Creates a folder with its missing parents. Failures are reported by the later write.
/// \returns folders with a new entry, which must be flushed to survive a power failure.
[[nodiscard]] std::vector<std::filesystem::path> make_folders(const std::filesystem::path& folder);

/// Flushes a file's content, or renames within a folder, to disk.
/// \throws Error (io) if the system refuses.
void sync_to_disk(const std::filesystem::path& path, std::string_view operation);

/// Returns a sentence about the damage of one checkpoint file, or no value if it matches the manifest.
/// \param verify  If true, the checksum is compared, which reads the whole file.
[[nodiscard]] std::optional<std::string> find_file_damage(const ManifestFile& listed,
                                                          const std::filesystem::path& folder, bool verify);

/// The files that one of `count` processes verifies: file `index` of the manifest and every `count`-th after it.
struct FileShare {
  size_t index = 0;
  size_t count = 1;
};

/// Returns a sentence about the damage of a checkpoint folder, or no value if it is complete.
/// \param verify  If true, checksums are compared, which reads all files of `share`.
/// \param share  Does not limit the comparison of sizes.
[[nodiscard]] std::optional<std::string> find_damage(const std::filesystem::path& folder, bool verify,
                                                     const FileShare& share = {});

/// Returns the folder's manifest.
/// \throws Error (io) if it does not exist; Error (data) if it is invalid.
[[nodiscard]] Manifest manifest_of(const std::filesystem::path& folder, std::string_view operation);

/// Returns the folders "checkpoint_N" in `parent`, highest number first.
[[nodiscard]] std::vector<std::filesystem::path> numbered_checkpoints(const std::filesystem::path& parent);

struct NewestComplete {
  std::filesystem::path folder{};
  std::vector<std::string> skipped_checkpoints{};  ///< "checkpoint_9: model.safetensors is missing"
};

/// Returns the complete checkpoint with the highest number.
/// \throws Error (io) with the damage of each folder if no checkpoint is complete.
[[nodiscard]] NewestComplete newest_complete_checkpoint(const std::filesystem::path& parent, std::string_view operation,
                                                        bool verify);

}  // namespace accelerate::archive
