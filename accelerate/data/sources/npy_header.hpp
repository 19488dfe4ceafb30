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

/// bytes   the file, or more of its start than the header
/// Throws Error (data) for a header that is broken, or that says what LibTorch has no dtype for. Pure.
NpyHeader read_npy_header(std::string_view bytes, const std::filesystem::path& path);

}  // namespace accelerate::data
