// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace accelerate::archive {

/// A file as memory that is read on access. All processes of a machine that map it share one copy, the system's page
/// cache. Writes to the memory stay in the process and never reach the file. The file must not be truncated while it is
/// mapped.
class MappedFile {
 public:
  /// \param operation  Name of the user's call for errors.
  /// \throws Error (io) if the file cannot be opened or is not a regular file.
  MappedFile(std::filesystem::path path, std::string_view operation);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] uint64_t size() const { return size_; }
  [[nodiscard]] std::string_view text() const { return {static_cast<const char*>(data_), size_}; }
  /// Null for an empty file.
  [[nodiscard]] char* data() const { return static_cast<char*>(data_); }

 private:
  std::filesystem::path path_;
  void* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace accelerate::archive
