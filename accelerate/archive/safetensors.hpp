// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file (https://github.com/huggingface/safetensors, "Format").
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/archive/origin.hpp"

namespace accelerate::archive {

struct SafetensorsEntry {
  std::string name{};
  std::string dtype{};  ///< "F32", "BF16", ..., as in the file
  std::vector<uint64_t> shape{};
  uint64_t begin = 0, end = 0;  ///< positions in bytes after the header

  bool operator==(const SafetensorsEntry&) const = default;
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata{};  ///< "__metadata__"
  std::vector<SafetensorsEntry> tensors{};        ///< in the order of their bytes
  uint64_t data_begin = 0;                        ///< end of the header in bytes

  bool operator==(const SafetensorsHeader&) const = default;
};

/// Returns the bits per element: 32 for "F32". Returns no value for a dtype that safetensors does not define.
[[nodiscard]] std::optional<uint64_t> safetensors_bits(std::string_view dtype);

/// \param file  All bytes of the file or, if file_bytes is given, at least those of the header.
/// \throws Error (data) unless the header has the stated length, at most 100 MB, is JSON without duplicate names, every
///         tensor's bytes match shape and dtype, and the tensors cover the rest of the file without gap or overlap.
[[nodiscard]] SafetensorsHeader read_safetensors(std::string_view file, const Origin& origin,
                                                 std::optional<uint64_t> file_bytes = std::nullopt);

/// \param tensors  `begin` and `end` are filled in; the tensors are sorted by element size, so that each is aligned.
/// \returns the start of the file: 8 bytes of length and the JSON, in total a multiple of 8 bytes. The tensors' bytes
///          follow in the new order of `tensors`.
/// \throws Error (usage) for a duplicate name, "__metadata__" as a name, or an unknown dtype.
[[nodiscard]] std::string write_safetensors(std::vector<SafetensorsEntry>& tensors,
                                            const std::map<std::string, std::string>& metadata,
                                            std::string_view operation);

}  // namespace accelerate::archive
