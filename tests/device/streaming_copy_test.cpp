// SPDX-License-Identifier: Apache-2.0
#include "accelerate/device/streaming_copy.hpp"

#include <doctest/doctest.h>

#include <string>

TEST_CASE("streaming_copy() writes exactly the given bytes for any alignment and length") {
  std::string source(1000, '\0');
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<char>('a' + i % 23);
  for (size_t from = 0; from < 4; ++from) {
    for (size_t to = 0; to < 70; ++to) {
      for (const size_t bytes : {0, 1, 15, 16, 63, 64, 65, 127, 128, 129, 300, 900}) {
        CAPTURE(from);
        CAPTURE(to);
        CAPTURE(bytes);
        std::string seen(1000, '.');
        accelerate::device::streaming_copy(seen.data() + to, source.data() + from, bytes);
        std::string expected(1000, '.');
        expected.replace(to, bytes, source, from, bytes);
        REQUIRE(seen == expected);
      }
    }
  }
}
