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
  std::string dtype{};  ///< "F32", "BF16", ...: as the file says
  std::vector<uint64_t> shape{};
  uint64_t begin = 0, end = 0;  ///< bytes after the header

  bool operator==(const SafetensorsEntry&) const = default;
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata{};  ///< "__metadata__"
  std::vector<SafetensorsEntry> tensors{};        ///< in the order of their bytes
  uint64_t data_begin = 0;                        ///< of the file

  bool operator==(const SafetensorsHeader&) const = default;
};

/// Bits of an element: 32 for "F32"; none for a dtype that safetensors does not know.
[[nodiscard]] std::optional<uint64_t> safetensors_bits(std::string_view dtype);

/// file   all bytes of the file, or, with file_bytes, as many as the header has
/// Throws Error (data) unless everything holds: the header is of its length, at most 100 MB, JSON, without a name that
/// appears twice; every tensor has as many bytes as shape and dtype say; together they cover the rest of the file
/// without gap and overlap.
[[nodiscard]] SafetensorsHeader read_safetensors(std::string_view file, const Origin& origin,
                                                 std::optional<uint64_t> file_bytes = std::nullopt);

/// tensors   begin and end are filled in, one tensor after another, largest elements first, so that each is aligned
/// returns   what a file begins with: 8 bytes of length and the JSON, a multiple of 8 bytes in all; the tensors' bytes
///           follow in the order in which `tensors` now are
/// Throws Error (usage) where a name appears twice, is "__metadata__", or a dtype is unknown.
[[nodiscard]] std::string write_safetensors(std::vector<SafetensorsEntry>& tensors,
                                            const std::map<std::string, std::string>& metadata,
                                            std::string_view operation);

}  // namespace accelerate::archive
