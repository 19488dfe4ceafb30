// SPDX-License-Identifier: Apache-2.0
// A record of TensorBoard's event files (TFRecord): length, its checksum, bytes, their checksum.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace accelerate::tracking {

/// CRC-32C (Castagnoli, RFC 3720).
[[nodiscard]] uint32_t crc32c(std::string_view bytes);

/// As tensorflow/core/lib/hash/crc32c.h masks it: a checksum of bytes that hold checksums would be weak.
[[nodiscard]] uint32_t masked_crc32c(std::string_view bytes);

[[nodiscard]] std::string event_record(std::string_view bytes);

}  // namespace accelerate::tracking
