// SPDX-License-Identifier: Apache-2.0
// The header of a .npy file: magic, version, length, then a Python dict as text.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace accelerate::data {

struct NpyHeader {
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  uint64_t size;  ///< bytes before the first number
};

/// Pure function.
/// \param bytes  The file, or a part of its start that contains the header.
/// \throws Error (data) for a broken header, or a dtype that LibTorch lacks.
NpyHeader read_npy_header(std::string_view bytes, const std::filesystem::path& path);

}  // namespace accelerate::data
