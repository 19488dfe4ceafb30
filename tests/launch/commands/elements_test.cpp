// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/elements.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "tests/launch/commands/files.hpp"

using namespace accelerate::launch;
using namespace std::string_literals;
using testing::floats;

TEST_CASE("the pair of elements with the largest distance is reported with its position") {
  const auto found = compare_elements("F32", 32, floats({1, 2, 3, 4}), floats({1, 2.5, 1, 4}));
  CHECK(found.elements == 2);
  CHECK(found.largest == 2.0);
  CHECK(found.left == 3.0);
  CHECK(found.right == 1.0);
  CHECK(found.index == 2);
  CHECK(compare_elements("F32", 32, floats({1}), floats({1})).elements == 0);
}

TEST_CASE("a NaN on one side has the largest distance; zeros of opposite sign have distance zero") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto found = compare_elements("F32", 32, floats({1, nan, 1}), floats({9, 1, 100}));
  CHECK(found.elements == 3);
  CHECK(std::isnan(found.largest.value()));
  CHECK(found.index == 1);
  const auto zeros = compare_elements("F32", 32, floats({0.0F}), floats({-0.0F}));
  CHECK(zeros.elements == 1);
  CHECK(zeros.largest == 0.0);
}

TEST_CASE("half precision, bfloat16 and integers are compared as numbers, other dtypes as bytes") {
  // 1.5 and -2 in float16; the smallest subnormal; 1.5 and 1 in bfloat16
  CHECK(compare_elements("F16", 16, "\x00\x3e"s, "\x00\xc0"s).largest == 3.5);
  CHECK(compare_elements("F16", 16, "\x01\x00"s, "\x00\x00"s).largest == std::ldexp(1.0, -24));
  CHECK(std::isinf(compare_elements("F16", 16, "\x00\x7c"s, "\x00\x00"s).largest.value()));
  CHECK(compare_elements("BF16", 16, "\xc0\x3f"s, "\x80\x3f"s).largest == 0.5);
  CHECK(compare_elements("I8", 8, "\xff"s, "\x01"s).largest == 2.0);
  CHECK(compare_elements("U8", 8, "\xff"s, "\x01"s).largest == 254.0);
  // 2^62 and 2^62 + 1, which are equal as doubles
  const auto large = compare_elements("I64", 64, "\0\0\0\0\0\0\0\x40"s, "\1\0\0\0\0\0\0\x40"s);
  CHECK(large.largest == 1.0L);
  CHECK(large.right == std::ldexp(1.0L, 62) + 1);
  const auto masks = compare_elements("BOOL", 8, "\x01\x00"s, "\x01\x01"s);
  CHECK(masks.elements == 1);
  CHECK_FALSE(masks.largest.has_value());
}
