// SPDX-License-Identifier: Apache-2.0
// Files that grow while a run lasts and are read when it was killed.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "accelerate/base/file_descriptor.hpp"

namespace accelerate::tracking {

/// What append() was given is the system's when it returns: a killed program loses nothing of it, a loss of power may
/// lose the last seconds.
class AppendFile {
 public:
  AppendFile() = default;
  /// Made where it is not there, else appended to. Throws Error (io).
  explicit AppendFile(std::filesystem::path path);

  /// All of it or nothing. Throws Error (io), "no space left" among others.
  void append(std::string_view bytes);
  /// All that is in it. Throws Error (io).
  [[nodiscard]] std::string read() const;
  /// The file holds this from now on. A reader, and a killed run, see the old or the new one. Throws Error (io).
  void replace(std::string_view text);
  /// Whether it ends within a line: the last run in it ended while it wrote.
  [[nodiscard]] bool ends_within_line() const;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  void open();
  [[noreturn]] void fail(std::string_view what) const;

  std::filesystem::path path_;
  base::FileDescriptor file_;
};

}  // namespace accelerate::tracking
