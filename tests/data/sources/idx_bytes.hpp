// SPDX-License-Identifier: Apache-2.0
// IDX files of unsigned bytes, gzipped or not.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace test_files {

/// Writes `bytes`, followed by `millions` million zeros.
inline void write_gzip(const std::filesystem::path& path, const std::string& bytes, int millions = 0) {
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  const std::string zeros(millions > 0 ? 1'000'000 : 0, '\0');
  for (int i = 0; i < millions; ++i) gzwrite(file, zeros.data(), static_cast<unsigned>(zeros.size()));
  gzclose(file);
}

inline std::string word(uint32_t value) {
  std::string bytes;
  for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(value >> shift & 255U);
  return bytes;
}

/// An IDX file of this shape; its bytes count up.
inline std::string idx(const std::vector<uint32_t>& shape) {
  std::string bytes = word(0x0800U + static_cast<uint32_t>(shape.size()));
  uint32_t size = 1;
  for (const uint32_t n : shape) bytes += word(n), size *= n;
  for (uint32_t i = 0; i < size; ++i) bytes += static_cast<char>(i % 251);
  return bytes;
}

}  // namespace test_files
