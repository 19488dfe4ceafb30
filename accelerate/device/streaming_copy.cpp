// SPDX-License-Identifier: Apache-2.0
#include "accelerate/device/streaming_copy.hpp"

#include <cstdint>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace accelerate::device {

#if defined(__SSE2__)
void streaming_copy(char* to, const char* from, size_t bytes) {
  constexpr size_t kLineBytes = 64;
  const size_t head = (kLineBytes - reinterpret_cast<uintptr_t>(to) % kLineBytes) % kLineBytes;
  if (bytes < head + kLineBytes) {
    std::memcpy(to, from, bytes);
    return;
  }
  std::memcpy(to, from, head);
  size_t at = head;
  for (; at + kLineBytes <= bytes; at += kLineBytes) {  // complete lines, which the processor writes without reading
    const auto* const source = reinterpret_cast<const __m128i*>(from + at);
    auto* const target = reinterpret_cast<__m128i*>(to + at);
    const __m128i first = _mm_loadu_si128(source), second = _mm_loadu_si128(source + 1);
    const __m128i third = _mm_loadu_si128(source + 2), fourth = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, first);
    _mm_stream_si128(target + 1, second);
    _mm_stream_si128(target + 2, third);
    _mm_stream_si128(target + 3, fourth);
  }
  _mm_sfence();  // streamed writes are not ordered before later ones, such as the release of a lock
  std::memcpy(to + at, from + at, bytes - at);
}
#else
void streaming_copy(char* to, const char* from, size_t bytes) { std::memcpy(to, from, bytes); }
#endif

}  // namespace accelerate::device
