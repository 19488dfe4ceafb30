// SPDX-License-Identifier: Apache-2.0
#include "accelerate/base/error.hpp"

#include <doctest/doctest.h>
#include <fmt/xchar.h>

#include <exception>
#include <locale>
#include <string>
#include <type_traits>
#include <vector>

using accelerate::ErrorKind;
using accelerate::RankContext;
namespace base = accelerate::base;

TEST_CASE("an error names rank context, operation, both values and the remedy") {
  const RankContext here{.rank = 3, .world_size = 8, .host = "gpu-b"};
  CHECK_THROWS_WITH_AS(base::fail(ErrorKind::usage, here, "shard", "batch_size is {}, must be at least {}", 0, 1),
                       "[rank 3 of 8, gpu-b] shard: batch_size is 0, must be at least 1", accelerate::Error);
}

TEST_CASE("an error without rank context begins with the operation") {
  CHECK_THROWS_WITH(base::fail(ErrorKind::io, {}, "read", "no such file"), "read: no such file");
}

TEST_CASE("an error keeps its kind, and every kind has a name") {
  try {
    base::fail(ErrorKind::peer, {}, "barrier", "lost");
  } catch (const accelerate::Error& error) {
    CHECK(error.kind() == ErrorKind::peer);
  }
  CHECK(base::error_kind_name(ErrorKind::usage) == "usage");
  CHECK(base::error_kind_name(ErrorKind::environment) == "environment");
  CHECK(base::error_kind_name(ErrorKind::data) == "data");
  CHECK(base::error_kind_name(ErrorKind::peer) == "peer");
  CHECK(base::error_kind_name(ErrorKind::device) == "device");
  CHECK(base::error_kind_name(ErrorKind::io) == "io");
}

TEST_CASE("an error has the parts of its text as fields, also if it is copied or rethrown") {
  const RankContext here{.rank = 3, .world_size = 8, .host = "gpu-b"};
  const accelerate::Error error(ErrorKind::peer, here, "all_gather", "ranks 1, 5 did not join", {5, 1});
  const auto check = [](const accelerate::Error& one) {
    CHECK(one.kind() == ErrorKind::peer);
    CHECK(one.rank() == 3);
    CHECK(one.world_size() == 8);
    CHECK(one.host() == "gpu-b");
    CHECK(one.operation() == "all_gather");
    CHECK(one.missing_ranks() == std::vector<int64_t>{1, 5});
    CHECK(one.what() == std::string("[rank 3 of 8, gpu-b] all_gather: ranks 1, 5 did not join"));
  };
  check(error);
  static_assert(std::is_nothrow_copy_constructible_v<accelerate::Error>);
  const auto copy = error;
  check(copy);
  try {
    std::rethrow_exception(std::make_exception_ptr(error));
  } catch (const accelerate::Error& again) {
    check(again);
  }
}

TEST_CASE("an error without rank context has an operation and no rank") {
  const accelerate::Error error(ErrorKind::io, {}, "read", "no such file");
  CHECK_FALSE(error.rank());
  CHECK_FALSE(error.world_size());
  CHECK(error.host().empty());
  CHECK(error.operation() == "read");
  CHECK(error.missing_ranks().empty());
}

TEST_CASE("an error from another process keeps its text and fields") {
  const accelerate::Error error(ErrorKind::data, "launch_workers: rank 1 of 2: read: digit is 11",
                                {.rank = 1, .world_size = 2, .host = "gpu-a", .operation = "read"});
  CHECK(error.what() == std::string("launch_workers: rank 1 of 2: read: digit is 11"));
  CHECK(error.rank() == 1);
  CHECK(error.operation() == "read");
}

TEST_CASE("fmt is LibTorch's own, with all templates that its headers only declare") {
  CHECK(FMT_VERSION >= 90000);
  CHECK(fmt::format("{} {} {:.2f}", 0.1F, 0.1, 2.0 / 3) == "0.1 0.1 0.67");
  CHECK(fmt::format(std::locale::classic(), "{:L} {:L}", 1234567, 0.5) == "1234567 0.5");
  CHECK(fmt::format(std::locale::classic(), L"{:L} {:L}", 1234567, 0.5) == L"1234567 0.5");
}
