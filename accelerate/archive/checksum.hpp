// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace accelerate::archive {

/// XXH3 of 64 bits (xxhash.com) of bytes that come in pieces: finds torn files and flipped bits, at the memory's speed.
/// It is no proof against somebody who wants to deceive.
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

/// Of all bytes at once.
[[nodiscard]] std::string checksum_of(std::string_view bytes);

}  // namespace accelerate::archive
