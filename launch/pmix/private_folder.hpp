// SPDX-License-Identifier: Apache-2.0
// Folders that go away with the launcher, even after a SIGKILL.
#pragma once

#include <string>

#include "accelerate/base/file_descriptor.hpp"

namespace accelerate::launch {

/// Where a PrivateFolder will lie. Decided before it is made, so that more than one process can see to its end.
struct FolderPlace {
  std::string parent{};
  std::string named_by{};  ///< the variable that the parent comes from, for the text; empty: none
  std::string name = random_name();

  /// "accelerate_launch.", and what nobody guesses
  static std::string random_name();
  [[nodiscard]] std::string path() const { return parent + "/" + name; }
};

/// A new folder <parent>/accelerate_launch.<name> for this user only, removed with all it holds at the end. Making one
/// first sweeps the parent of folders whose launcher was killed: a living one holds a lock on its folder. Where the
/// file system knows no locks nothing is swept.
class PrivateFolder {
 public:
  /// Throws LaunchError (1) when the parent cannot be written.
  explicit PrivateFolder(const FolderPlace& place);
  ~PrivateFolder();
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  /// Makes path_ and locks it; false when another launcher swept it in between.
  bool make(const FolderPlace& place);

  std::string path_;
  base::FileDescriptor lock_;
};

/// Removes a folder with all it holds; nothing where it is not there.
void remove_folder(const std::string& path);

/// TMPDIR, else /tmp, else (where that cannot be written) /dev/shm.
FolderPlace place_for_temporary_files();

/// /dev/shm, else as above.
FolderPlace place_for_shared_memory();

}  // namespace accelerate::launch
