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

/// An IDX file of unsigned bytes, optionally gzipped. Its sizes are known before unpacking, so that they can be
/// validated.
class IdxFile {
 public:
  /// Reads the header.
  ///
  /// \param dimensions  Required number of dimensions: 3 for images, 1 for labels.
  /// \param on_error    With skip, a truncated file is accepted and its complete part is read.
  /// \throws Error (io) if the file cannot be opened; Error (data), with path, expected and found values, for a broken
  ///         header and for sizes that a file of its length cannot contain.
  IdxFile(const std::filesystem::path& path, int64_t dimensions, OnError on_error = OnError::fail);
  ~IdxFile();
  IdxFile(const IdxFile&) = delete;
  IdxFile& operator=(const IdxFile&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const;
  /// Shape in the header.
  [[nodiscard]] const std::vector<int64_t>& shape() const;

  /// Returns the bytes, uint8 of shape(), or of the complete rows. Call it once.
  ///
  /// \param max_rows  Maximum number of rows to unpack.
  /// \throws Error (data) if there are more or fewer bytes.
  [[nodiscard]] at::Tensor read(int64_t max_rows = std::numeric_limits<int64_t>::max());
  /// After read(): the error of missing rows, or "" if none is missing.
  [[nodiscard]] const std::string& cut_off() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Reads a whole IDX file; throws as IdxFile does.
at::Tensor read_idx(const std::filesystem::path& path, int64_t dimensions);

}  // namespace accelerate::data
