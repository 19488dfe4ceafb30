// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace accelerate::archive {

/// What a manifest calls these checksums.
inline constexpr std::string_view checksum_kind = "xxh3-64 of 4 MiB blocks";

/// XXH3 of 64 bits (xxhash.com) of bytes that come in pieces: finds torn files and flipped bits, at the memory's speed.
/// More than 4 MiB are cut into blocks of so many, and the sum is that of the blocks' sums, one after another in the
/// canonical form (big-endian): so all processors can make it. It is no proof against somebody who wants to deceive.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;

  void add(std::string_view bytes);
  /// 16 hexadecimal digits, of what was added so far.
  [[nodiscard]] std::string text() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Of all bytes at once, by all processors.
[[nodiscard]] std::string checksum_of(std::string_view bytes);

}  // namespace accelerate::archive
