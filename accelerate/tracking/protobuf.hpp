// SPDX-License-Identifier: Apache-2.0
// Minimal protocol buffer writer for event files: protobuf.dev/programming-guides/encoding.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace accelerate::tracking {

/// Builder for one message. Each call appends a field by its number.
class Message {
 public:
  Message& integer(uint32_t field, int64_t value) {
    key(field, 0);
    varint(static_cast<uint64_t>(value));
    return *this;
  }
  Message& number(uint32_t field, double value) {
    key(field, 1);
    return raw(value);
  }
  Message& number32(uint32_t field, float value) {
    key(field, 5);
    return raw(value);
  }
  /// Texts must be UTF-8, because readers reject messages with other texts.
  Message& bytes(uint32_t field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    wire_ += value;
    return *this;
  }
  Message& message(uint32_t field, const Message& value) { return bytes(field, value.wire_); }
  /// Packed encoding.
  Message& numbers(uint32_t field, std::span<const double> values) {
    key(field, 2);
    varint(values.size() * sizeof(double));
    for (const double value : values) raw(value);
    return *this;
  }

  [[nodiscard]] const std::string& wire() const { return wire_; }

 private:
  static_assert(std::endian::native == std::endian::little);

  void key(uint32_t field, uint32_t wire_type) { varint(field << 3 | wire_type); }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) wire_ += static_cast<char>(value | 0x80);
    wire_ += static_cast<char>(value);
  }
  template <typename T>
  Message& raw(T value) {
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    wire_.append(bytes, sizeof(T));
    return *this;
  }

  std::string wire_;
};

}  // namespace accelerate::tracking
