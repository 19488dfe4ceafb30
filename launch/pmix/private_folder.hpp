// SPDX-License-Identifier: Apache-2.0
// Folders that go away with the launcher, even after a SIGKILL.
#pragma once

#include <string>
#include <string_view>

#include "accelerate/base/file_descriptor.hpp"

namespace accelerate::launch {

/// A new folder <parent>/accelerate_launch.XXXXXX for this user only, removed with all it holds at the end. Making one
/// first sweeps the parent of folders whose launcher was killed: a living one holds a lock on its folder. Where the
/// file system knows no locks nothing is swept.
class PrivateFolder {
 public:
  /// named_by   the variable that the parent comes from, for the text
  /// Throws LaunchError (1) when parent cannot be written.
  explicit PrivateFolder(const std::string& parent, std::string_view named_by = "");
  ~PrivateFolder();
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;

  /// At the end of this object, or before by whoever will not live to see that.
  void remove() const;

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  /// Makes path_ and locks it; false when another launcher swept it in between.
  bool make(const std::string& parent, std::string_view named_by);

  std::string path_;
  base::FileDescriptor lock_;
};

/// TMPDIR, else /tmp, else (where that cannot be written) /dev/shm, as the parent of a PrivateFolder.
PrivateFolder folder_for_temporary_files();

/// /dev/shm, else as above.
PrivateFolder folder_for_shared_memory();

}  // namespace accelerate::launch
