// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/elements.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <map>

namespace accelerate::launch {
namespace {

// Represents all 64-bit numbers exactly; a double would merge neighbouring integers above 2^53.
using Exact = long double;

template <typename Number>
Exact as_exact(const char* bytes) {
  Number number{};
  std::memcpy(&number, bytes, sizeof(number));
  return static_cast<Exact>(number);
}

Exact of_bfloat16(const char* bytes) {
  uint16_t upper = 0;
  std::memcpy(&upper, bytes, sizeof(upper));
  const uint32_t whole = uint32_t{upper} << 16;
  return as_exact<float>(reinterpret_cast<const char*>(&whole));
}

Exact of_float16(const char* bytes) {
  uint16_t half = 0;
  std::memcpy(&half, bytes, sizeof(half));
  const int exponent = (half >> 10) & 31;
  const int fraction = half & 1023;
  double value = 0;
  if (exponent == 31) {
    value = fraction == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  } else {
    value = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25);
  }
  return (half >> 15) != 0 ? -value : value;
}

using Decoder = Exact (*)(const char*);

Decoder decoder_of(const std::string& dtype) {
  static const std::map<std::string, Decoder> decoders{
      {"F64", as_exact<double>},   {"F32", as_exact<float>},    {"F16", of_float16},         {"BF16", of_bfloat16},
      {"I64", as_exact<int64_t>},  {"I32", as_exact<int32_t>},  {"I16", as_exact<int16_t>},  {"I8", as_exact<int8_t>},
      {"U64", as_exact<uint64_t>}, {"U32", as_exact<uint32_t>}, {"U16", as_exact<uint16_t>}, {"U8", as_exact<uint8_t>}};
  const auto found = decoders.find(dtype);
  return found == decoders.end() ? nullptr : found->second;
}

}  // namespace

ElementDifference compare_elements(const std::string& dtype, uint64_t bits, std::string_view left,
                                   std::string_view right) {
  ElementDifference result;
  if (left == right) return result;
  const Decoder decode = decoder_of(dtype);
  const size_t size = bits / 8;
  for (size_t at = 0; at + size <= left.size(); at += size) {
    if (std::memcmp(left.data() + at, right.data() + at, size) == 0) continue;
    ++result.elements;
    if (decode == nullptr) continue;
    const Exact a = decode(left.data() + at);
    const Exact b = decode(right.data() + at);
    const Exact apart = std::abs(a - b);
    // The first NaN counts as the largest difference.
    if (result.largest && (std::isnan(*result.largest) || apart <= *result.largest)) continue;
    result.largest = apart;
    result.left = a;
    result.right = b;
    result.index = at / size;
  }
  return result;
}

}  // namespace accelerate::launch
