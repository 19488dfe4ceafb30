// SPDX-License-Identifier: Apache-2.0
#include "accelerate/base/bytes_text.hpp"

#include <doctest/doctest.h>

using accelerate::base::bytes_text;

TEST_CASE("bytes_text() uses the unit with two or three digits") {
  CHECK(bytes_text(0) == "0 bytes");
  CHECK(bytes_text(1023) == "1023 bytes");
  CHECK(bytes_text(1024) == "1.0 KiB");
  CHECK(bytes_text(1023 * 1024) == "1.0 MiB");
  CHECK(bytes_text(812 << 20) == "812 MiB");
  CHECK(bytes_text(int64_t{3} << 29) == "1.5 GiB");
  CHECK(bytes_text((10 << 20) - 1) == "10 MiB");
  CHECK(bytes_text(int64_t{5000} << 40) == "5000 TiB");
}
