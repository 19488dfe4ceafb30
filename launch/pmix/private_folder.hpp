// SPDX-License-Identifier: Apache-2.0
// Folders that are removed with the launcher, even after a SIGKILL.
#pragma once

#include <string>

#include "accelerate/base/file_descriptor.hpp"

namespace accelerate::launch {

/// Path of a future PrivateFolder. It is chosen before the folder is created, so that several processes can remove it.
struct FolderPlace {
  std::string parent{};
  std::string named_by{};  ///< variable that determined the parent, for messages; may be empty
  std::string name = random_name();

  /// Returns "accelerate_launch." followed by an unpredictable suffix.
  static std::string random_name();
  [[nodiscard]] std::string path() const { return parent + "/" + name; }
};

/// A new folder <parent>/accelerate_launch.<name> that only this user can access, removed with its contents on
/// destruction. The constructor first removes folders of killed launchers from the parent: a running launcher holds a
/// lock on its folder. On a file system without locks nothing is removed.
class PrivateFolder {
 public:
  /// \throws LaunchError (1) if the parent is not writable.
  explicit PrivateFolder(const FolderPlace& place);
  ~PrivateFolder();
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  /// Creates path_ and locks it. Returns false if another launcher removed it in between.
  bool make(const FolderPlace& place);

  std::string path_;
  base::FileDescriptor lock_;
};

/// Removes a folder with its contents. Does nothing if it does not exist.
void remove_folder(const std::string& path);

/// TMPDIR, otherwise /tmp, or /dev/shm if that is not writable.
FolderPlace place_for_temporary_files();

/// /dev/shm, otherwise as above.
FolderPlace place_for_shared_memory();

}  // namespace accelerate::launch
