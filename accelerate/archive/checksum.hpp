// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace accelerate::archive {

/// Name of these checksums in a manifest.
inline constexpr std::string_view kChecksumKind = "xxh3-64 of 4 MiB blocks";

/// Incremental 64-bit XXH3 checksum (xxhash.com): detects torn files and flipped bits at memory speed. More than 4 MiB
/// are split into blocks of this size, and the checksum is that of the block checksums in canonical (big-endian) form,
/// so that all processors can compute it. It is not cryptographic.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;

  void add(std::string_view bytes);
  /// Returns the checksum of the bytes added so far as 16 hexadecimal digits.
  [[nodiscard]] std::string text() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns the checksum of all bytes, computed by all processors.
[[nodiscard]] std::string checksum_of(std::string_view bytes);

}  // namespace accelerate::archive
