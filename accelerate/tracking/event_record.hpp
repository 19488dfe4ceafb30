// SPDX-License-Identifier: Apache-2.0
// Records of TensorBoard's event files (TFRecord): length, checksum of the length, data, checksum of the data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace accelerate::tracking {

/// CRC-32C (Castagnoli, RFC 3720).
[[nodiscard]] uint32_t crc32c(std::string_view bytes);

/// Masks the checksum as tensorflow/core/lib/hash/crc32c.h does, because a CRC over data that contains CRCs is weak.
[[nodiscard]] uint32_t masked_crc32c(std::string_view bytes);

[[nodiscard]] std::string event_record(std::string_view bytes);

}  // namespace accelerate::tracking
