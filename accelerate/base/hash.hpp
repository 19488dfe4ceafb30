// SPDX-License-Identifier: Apache-2.0
// The hash function FNV-1a: equal on all ranks and machines, unlike std::hash. Not for input that an attacker selects.
#pragma once

#include <cstdint>
#include <string_view>

namespace accelerate::base {

/// The hash of no input.
inline constexpr uint64_t kEmptyHash = 14695981039346656037ULL;

/// Appends a word to the input of a hash.
constexpr uint64_t hash_word(uint64_t word, uint64_t hash = kEmptyHash) { return (hash ^ word) * 1099511628211ULL; }

/// Appends the bytes of a text to the input of a hash.
constexpr uint64_t hash_text(std::string_view text, uint64_t hash = kEmptyHash) {
  for (const char c : text) hash = hash_word(static_cast<unsigned char>(c), hash);
  return hash;
}

}  // namespace accelerate::base
