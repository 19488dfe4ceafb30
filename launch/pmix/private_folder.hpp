// SPDX-License-Identifier: Apache-2.0
// Folders that go away with the launcher, even after a SIGKILL.
#pragma once

#include <string>

namespace accelerate::launch {

/// A new folder <parent>/accelerate_launch.XXXXXX for this user only, removed with all it holds at the end. Making one
/// first sweeps the parent of folders whose launcher was killed: a living one holds a lock on its folder.
class PrivateFolder {
 public:
  /// Throws LaunchError (1) when parent cannot be written.
  explicit PrivateFolder(const std::string& parent);
  ~PrivateFolder();
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
  int lock_ = -1;
};

}  // namespace accelerate::launch
