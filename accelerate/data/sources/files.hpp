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

#include "accelerate/archive/mapped_file.hpp"
#include "accelerate/base/printable.hpp"

namespace accelerate::data {

using archive::MappedFile;
using base::in_quotes;

/// A tensor that lies in `file` from byte `offset` on, and keeps it mapped. Its bytes must be there.
at::Tensor tensor_in(const std::shared_ptr<MappedFile>& file, uint64_t offset, at::IntArrayRef shape,
                     at::ScalarType dtype);

/// A whole file; throws as MappedFile does. What is allocated is what is there.
std::vector<uint8_t> read_file(const std::filesystem::path& path, std::string_view operation);

/// float32, int64 ...
std::string dtype_name(at::ScalarType dtype);

/// The bytes of one sample; none where they are more than a file can hold.
std::optional<uint64_t> bytes_of(at::IntArrayRef shape, at::ScalarType dtype);

}  // namespace accelerate::data
