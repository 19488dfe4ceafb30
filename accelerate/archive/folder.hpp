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

/// A folder in the making, beside the place where it will be. Until commit() nobody who looks for checkpoints sees it,
/// and whatever ends the program before leaves the place as it was.
///
/// Throws Error (io) where the system refuses; Error (usage) where another process is saving to the same place. A file
/// system without locks does not show that: there whatever is in the making counts as left by a killed one.
class NewFolder {
 public:
  /// place       of the whole folder, without a slash at its end; its parent is made
  /// operation   what the user called, for errors
  NewFolder(std::filesystem::path place, std::string_view operation);
  /// Without commit(): removed, with all in it.
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  /// Where files are written to.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// Writes the manifest and puts the folder into its place, instead of what was there. Files there that were not of
  /// the checkpoint are in the new folder, too. durable: it is there after a loss of power, too; files must have been
  /// brought to the disk by then.
  void commit(const Manifest& manifest, bool durable = true);

 private:
  std::filesystem::path place_, path_;
  std::string operation_;
  std::vector<std::filesystem::path> made_in_;  // see make_folders()
  base::FileDescriptor lock_;
};

/// Whether a folder has a manifest.json that begins as ours, whole or torn.
[[nodiscard]] bool has_own_manifest(const std::filesystem::path& folder);

/// Why a folder that is there is none of a checkpoint, in a sentence; none: it has a manifest.json that begins as ours,
/// whole or torn, or is Hugging Face Accelerate's.
[[nodiscard]] std::optional<std::string> why_no_checkpoint(const std::filesystem::path& place);

/// Throws Error (usage) where there is something at that place that would be lost: what is neither empty nor a
/// checkpoint's folder, and folders within one.
void check_replaceable(const std::filesystem::path& place, std::string_view operation);

/// In a folder in the making, held by the process that makes it.
inline constexpr std::string_view lock_name = ".lock";

/// Puts a whole checkpoint back into its place where a process was killed while the new one took the old one's: on file
/// systems that cannot exchange two names at once.
void recover(const std::filesystem::path& place);

/// The same for all numbered checkpoints in parent.
void recover_numbered(const std::filesystem::path& parent);

/// Takes a checkpoint away, so that nobody ever sees a part of it.
/// returns   what is in its folder and not of it: it stays there
std::vector<std::filesystem::path> remove_checkpoint(const std::filesystem::path& folder);

/// Removes what killed processes left of numbered checkpoints in parent: folders in the making that no process holds,
/// and folders on their way out. What recover() would put back stays, and so do folders with names that this library
/// does not give.
void remove_leftovers(const std::filesystem::path& parent);

/// Makes a folder, and those above it that are not there. What is wrong is said by whoever writes to it.
/// returns   folders that have a new one in them now, which stays so after a loss of power once they were brought to
///           the disk
[[nodiscard]] std::vector<std::filesystem::path> make_folders(const std::filesystem::path& folder);

/// What a file holds, or what was renamed within a folder, stays so after a loss of power. Throws Error (io).
void bring_to_disk(const std::filesystem::path& path, std::string_view operation);

/// What is wrong with one file of a checkpoint's folder, in a sentence; none: it is as the manifest says.
/// verify   its checksum too, which reads all of it
[[nodiscard]] std::optional<std::string> what_is_wrong_with(const ManifestFile& listed,
                                                            const std::filesystem::path& folder, bool verify);

/// What is wrong with a checkpoint's folder, in a sentence; none: it is whole.
/// verify   checksums too, which reads all of it
[[nodiscard]] std::optional<std::string> what_is_wrong(const std::filesystem::path& folder, bool verify);

/// Its manifest. Throws Error (io) where there is none.
[[nodiscard]] Manifest manifest_of(const std::filesystem::path& folder, std::string_view operation);

/// Folders "checkpoint_7" in parent, by their number, the highest first.
[[nodiscard]] std::vector<std::filesystem::path> numbered_checkpoints(const std::filesystem::path& parent);

struct NewestWhole {
  std::filesystem::path folder{};
  std::vector<std::string> passed_over{};  ///< "checkpoint_9: model.safetensors is missing"
};

/// The highest numbered checkpoint that is whole. Throws Error (io) with all that is wrong where none is.
[[nodiscard]] NewestWhole newest_whole(const std::filesystem::path& parent, std::string_view operation, bool verify);

}  // namespace accelerate::archive
