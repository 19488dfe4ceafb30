// SPDX-License-Identifier: Apache-2.0
// IDX, the format of MNIST: big-endian magic 0x00 0x00 0x08 <dimensions>, one uint32 per dimension, then the bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "accelerate/data/sources/on_error.hpp"

namespace accelerate::data {

/// An IDX file of unsigned bytes, gzipped or not. Its sizes are known before anything is unpacked, so that they can be
/// compared with what is expected.
class IdxFile {
 public:
  /// Reads the header.
  ///
  /// dimensions   what the file must have: 3 for images, 1 for labels
  /// on_error     skip: a file may be cut off; what is whole of it is read
  /// Throws Error (io) where the file cannot be opened, Error (data), with path, expected and found, for a broken
  /// header and for sizes that a file of its length cannot hold.
  IdxFile(const std::filesystem::path& path, int64_t dimensions, OnError on_error = OnError::fail);
  ~IdxFile();
  IdxFile(const IdxFile&) = delete;
  IdxFile& operator=(const IdxFile&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const;
  /// As the header says.
  [[nodiscard]] const std::vector<int64_t>& shape() const;

  /// The bytes, uint8 of shape(), or of as many whole rows as there are. Throws Error (data) where they are more or
  /// less. Call it once.
  ///
  /// most_rows   what comes after them is not unpacked
  [[nodiscard]] at::Tensor read(int64_t most_rows = std::numeric_limits<int64_t>::max());
  /// After read(): what is wrong with the rows that are missing; empty: none is.
  [[nodiscard]] const std::string& cut_off() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Reads a whole IDX file; throws as IdxFile does.
at::Tensor read_idx(const std::filesystem::path& path, int64_t dimensions);

}  // namespace accelerate::data
