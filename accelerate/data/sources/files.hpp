// SPDX-License-Identifier: Apache-2.0
// What the readers of this wing share: a file as memory, and text of it as errors show it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::data {

/// A file as memory that is read when it is touched. All processes of a machine that map it share one copy, the
/// system's page cache. What a process writes into that memory stays its own and never reaches the file.
class MappedFile {
 public:
  /// operation   the name of the reader in errors
  /// Throws Error (io) where it cannot be opened, or is no regular file.
  MappedFile(std::filesystem::path path, std::string_view operation);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] uint64_t size() const { return size_; }
  [[nodiscard]] std::string_view text() const { return {static_cast<const char*>(data_), size_}; }

  /// A tensor that lies in `file` from byte `offset` on, and keeps it mapped. Its bytes must be there.
  static at::Tensor tensor(const std::shared_ptr<MappedFile>& file, uint64_t offset, at::IntArrayRef shape,
                           at::ScalarType dtype);

 private:
  std::filesystem::path path_;
  void* data_ = nullptr;  // null: an empty file
  uint64_t size_ = 0;
};

/// A whole file; throws as MappedFile does. What is allocated is what is there.
std::vector<uint8_t> read_file(const std::filesystem::path& path, std::string_view operation);

/// 'text' on one line: bytes that do not print as \x07, a long one cut.
std::string in_quotes(std::string_view text);

/// float32, int64 ...
std::string dtype_name(at::ScalarType dtype);

/// The bytes of one sample; none where they are more than a file can hold.
std::optional<uint64_t> bytes_of(at::IntArrayRef shape, at::ScalarType dtype);

}  // namespace accelerate::data
