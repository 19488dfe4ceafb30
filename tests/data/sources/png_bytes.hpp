// SPDX-License-Identifier: Apache-2.0
// PNG files written by hand, so that the tests do not depend on the tested library.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <string>

namespace test_files {

inline std::string big_endian(uint32_t value) {
  std::string word;
  for (const int shift : {24, 16, 8, 0}) word += static_cast<char>(value >> shift & 255U);
  return word;
}

inline std::string png_chunk(const std::string& type, const std::string& data) {
  const std::string checked = type + data;
  const auto sum = crc32(0, reinterpret_cast<const Bytef*>(checked.data()), static_cast<uInt>(checked.size()));
  return big_endian(static_cast<uint32_t>(data.size())) + checked + big_endian(static_cast<uint32_t>(sum));
}

/// \param rows    Each row begins with its filter byte.
/// \param colour  0 grey, 2 RGB, 6 RGBA.
inline std::string png(uint32_t width, uint32_t height, int bits, int colour, const std::string& rows,
                       bool interlaced = false) {
  std::string packed(compressBound(static_cast<uLong>(rows.size())), '\0');
  auto size = static_cast<uLongf>(packed.size());
  compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(rows.data()),
           static_cast<uLong>(rows.size()));
  packed.resize(size);
  const std::string header = big_endian(width) + big_endian(height) + static_cast<char>(bits) +
                             static_cast<char>(colour) + std::string(2, '\0') + static_cast<char>(interlaced ? 1 : 0);
  return "\x89PNG\r\n\x1a\n" + png_chunk("IHDR", header) + png_chunk("IDAT", packed) + png_chunk("IEND", "");
}

}  // namespace test_files
