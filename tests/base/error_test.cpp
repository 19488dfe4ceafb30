// SPDX-License-Identifier: Apache-2.0
#include "accelerate/base/error.hpp"

#include <doctest/doctest.h>
#include <fmt/xchar.h>

#include <locale>

using accelerate::ErrorKind;
using accelerate::Place;
namespace base = accelerate::base;

TEST_CASE("an error names place, operation, both values and the remedy") {
  const Place here{.rank = 3, .world_size = 8, .host = "gpu-b"};
  CHECK_THROWS_WITH_AS(base::fail(ErrorKind::usage, here, "shard", "batch_size is {}, must be at least {}", 0, 1),
                       "[rank 3 of 8, gpu-b] shard: batch_size is 0, must be at least 1", accelerate::Error);
}

TEST_CASE("an error of an unknown place begins with the operation") {
  CHECK_THROWS_WITH(base::fail(ErrorKind::io, {}, "read", "no such file"), "read: no such file");
}

TEST_CASE("an error keeps its kind, and every kind has a name") {
  try {
    base::fail(ErrorKind::peer, {}, "barrier", "lost");
  } catch (const accelerate::Error& error) {
    CHECK(error.kind() == ErrorKind::peer);
  }
  CHECK(base::name(ErrorKind::usage) == "usage");
  CHECK(base::name(ErrorKind::environment) == "environment");
  CHECK(base::name(ErrorKind::data) == "data");
  CHECK(base::name(ErrorKind::peer) == "peer");
  CHECK(base::name(ErrorKind::device) == "device");
  CHECK(base::name(ErrorKind::io) == "io");
}

TEST_CASE("fmt is LibTorch's own, and every template that its headers only declare is there") {
  CHECK(FMT_VERSION >= 90000);
  CHECK(fmt::format("{} {} {:.2f}", 0.1F, 0.1, 2.0 / 3) == "0.1 0.1 0.67");
  CHECK(fmt::format(std::locale::classic(), "{:L} {:L}", 1234567, 0.5) == "1234567 0.5");
  CHECK(fmt::format(std::locale::classic(), L"{:L} {:L}", 1234567, 0.5) == L"1234567 0.5");
}
