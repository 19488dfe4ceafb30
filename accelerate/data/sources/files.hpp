// SPDX-License-Identifier: Apache-2.0
// Common code of the file readers: files in memory, and texts for errors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/archive/mapped_file.hpp"
#include "accelerate/base/terminal_text.hpp"

namespace accelerate::data {

using archive::MappedFile;
using base::quote_for_terminal;

/// A tensor over `file` from byte `offset` on; it keeps the file mapped. The bytes must exist.
at::Tensor tensor_in(const std::shared_ptr<MappedFile>& file, uint64_t offset, at::IntArrayRef shape,
                     at::ScalarType dtype);

/// Reads a whole file. Allocates only the actual size. \throws as MappedFile does.
std::vector<uint8_t> read_file(const std::filesystem::path& path, std::string_view operation);

/// Returns "float32", "int64" ...
std::string dtype_name(at::ScalarType dtype);

/// Bytes of one sample, or nothing if they exceed any file size.
std::optional<uint64_t> array_bytes(at::IntArrayRef shape, at::ScalarType dtype);

}  // namespace accelerate::data
