// SPDX-License-Identifier: Apache-2.0
// Append-only log files that stay readable if the run is killed.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "accelerate/base/file_descriptor.hpp"

namespace accelerate::tracking {

/// When append() returns, the operating system has the data: a killed program loses nothing, but a power failure may
/// lose the last seconds.
class AppendFile {
 public:
  AppendFile() = default;
  /// Creates the file if it does not exist; existing content is kept.
  /// \throws Error (io) if the file cannot be created or opened.
  explicit AppendFile(std::filesystem::path path);

  /// Appends all bytes or none.
  /// \throws Error (io), for example "no space left".
  void append(std::string_view bytes);
  /// Returns the whole content.
  /// \throws Error (io) if the file cannot be read.
  [[nodiscard]] std::string read() const;
  /// Replaces the content atomically: a reader, or a run that is killed, finds either the old or the new content.
  /// \throws Error (io) if the file cannot be written.
  void replace(std::string_view text);
  /// True if the content ends inside a line, because the previous run was killed during a write.
  [[nodiscard]] bool ends_within_line() const;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  void open();
  [[noreturn]] void fail(std::string_view what) const;

  std::filesystem::path path_;
  base::FileDescriptor file_;
};

}  // namespace accelerate::tracking
