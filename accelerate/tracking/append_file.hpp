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
  /// Creates the file if it does not exist; existing content is kept. \throws Error (io)
  explicit AppendFile(std::filesystem::path path);

  /// Appends all bytes or none. \throws Error (io), for example "no space left".
  void append(std::string_view bytes);
  /// Returns the whole content. \throws Error (io)
  [[nodiscard]] std::string read() const;
  /// Replaces the content. A reader, or a run that is killed, sees either the old or the new content. \throws Error
  /// (io)
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
