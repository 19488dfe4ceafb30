// SPDX-License-Identifier: Apache-2.0
// Folders that are there as a whole or not at all.
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
class NewFolder {
 public:
  /// \param place      Path of the finished folder without a trailing slash; its parent is created.
  /// \param operation  Name of the user's call for errors.
  NewFolder(std::filesystem::path place, std::string_view operation);
  /// Without commit(): removed, with all in it.
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  /// Where files are written to.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// Writes the manifest and moves the folder to its path, replacing a previous one. Files in the previous folder that
  /// do not belong to the checkpoint are kept. \param durable  If true, the folder survives a power failure; its files
  /// must have been flushed before.
  void commit(const Manifest& manifest, bool durable = true);

 private:
  std::filesystem::path place_, path_;
  std::string operation_;
  std::vector<std::filesystem::path> made_in_;  // see make_folders()
  base::FileDescriptor lock_;
};

/// Whether a folder has a manifest.json that begins as ours, whole or torn.
[[nodiscard]] bool has_own_manifest(const std::filesystem::path& folder);

/// Returns a sentence why an existing folder is not a checkpoint. Returns nothing if its manifest.json begins as one of
/// this library (complete or torn), or if it is a folder of Hugging Face Accelerate.
[[nodiscard]] std::optional<std::string> why_no_checkpoint(const std::filesystem::path& place);

/// \throws Error (usage) if replacing the path would lose data: it is neither empty nor a checkpoint folder, or
/// contains
///         folders.
void check_replaceable(const std::filesystem::path& place, std::string_view operation);

/// In a folder in the making, held by the process that makes it.
inline constexpr std::string_view lock_name = ".lock";

/// Puts a whole checkpoint back into its place where a process was killed while the new one took the old one's: on file
/// systems that cannot exchange two names at once.
void recover(const std::filesystem::path& place);

/// The same for all numbered checkpoints in parent.
void recover_numbered(const std::filesystem::path& parent);

/// Removes a checkpoint so that a partial one is never visible.
/// \returns files in the folder that do not belong to it; they are kept.
std::vector<std::filesystem::path> remove_checkpoint(const std::filesystem::path& folder);

/// Removes what killed processes left of numbered checkpoints in parent: folders in the making that no process holds,
/// and folders on their way out. What recover() would put back stays, and so do folders with names that this library
/// does not give.
void remove_leftovers(const std::filesystem::path& parent);

/// Creates a folder with its missing parents. Failures are reported by the later write.
/// \returns folders with a new entry, which must be flushed to survive a power failure.
[[nodiscard]] std::vector<std::filesystem::path> make_folders(const std::filesystem::path& folder);

/// Flushes a file's content, or renames within a folder, to disk. \throws Error (io)
void bring_to_disk(const std::filesystem::path& path, std::string_view operation);

/// Returns a sentence about the damage of one checkpoint file, or nothing if it matches the manifest.
/// \param verify  Compare the checksum, which reads the whole file.
[[nodiscard]] std::optional<std::string> what_is_wrong_with(const ManifestFile& listed,
                                                            const std::filesystem::path& folder, bool verify);

/// Returns a sentence about the damage of a checkpoint folder, or nothing if it is complete.
/// \param verify  Compare checksums, which reads all files.
[[nodiscard]] std::optional<std::string> what_is_wrong(const std::filesystem::path& folder, bool verify);

/// Returns the folder's manifest. \throws Error (io) if it does not exist.
[[nodiscard]] Manifest manifest_of(const std::filesystem::path& folder, std::string_view operation);

/// Folders "checkpoint_7" in parent, by their number, the highest first.
[[nodiscard]] std::vector<std::filesystem::path> numbered_checkpoints(const std::filesystem::path& parent);

struct NewestWhole {
  std::filesystem::path folder{};
  std::vector<std::string> passed_over{};  ///< "checkpoint_9: model.safetensors is missing"
};

/// Returns the complete checkpoint with the highest number. \throws Error (io) with all damages if there is none.
[[nodiscard]] NewestWhole newest_whole(const std::filesystem::path& parent, std::string_view operation, bool verify);

}  // namespace accelerate::archive
