// SPDX-License-Identifier: Apache-2.0
// IDX, the format of MNIST: big-endian magic 0x00 0x00 0x08 <dimensions>, one uint32 per dimension, then the bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>

namespace accelerate::data {

/// Reads a whole IDX file of unsigned bytes, gzipped or not.
///
/// dimensions   what the file must have: 3 for images, 1 for labels
/// returns      uint8 of the file's shape
/// Throws Error (io) where the file cannot be opened, Error (data), with path, expected and found, where it is broken.
at::Tensor read_idx(const std::filesystem::path& path, int64_t dimensions);

}  // namespace accelerate::data
