// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/text.hpp"

#include <doctest/doctest.h>

using namespace accelerate::launch;

TEST_CASE("numbers are printed in groups of three digits, bytes in the largest suitable unit") {
  CHECK(with_commas(0) == "0");
  CHECK(with_commas(999) == "999");
  CHECK(with_commas(1000) == "1,000");
  CHECK(with_commas(1234567) == "1,234,567");
  CHECK(readable_bytes(1023) == "1023 B");
  CHECK(readable_bytes(1024) == "1.00 KiB");
  CHECK(readable_bytes((1 << 20) - 1) == "1.00 MiB");
  CHECK(readable_bytes(uint64_t{5} << 30) == "5.00 GiB");
  CHECK(readable_bytes(~uint64_t{0}) == "16.00 EiB");
  CHECK(counted(1, "shard") == "1 shard");
  CHECK(counted(0, "shard") == "0 shards");
  CHECK(counted(1200, "shard") == "1,200 shards");
}

TEST_CASE("a table's names are left-aligned, its numbers right-aligned") {
  CHECK(table_of({{"dtype", "tensors"}, {"F32", "3"}, {"BF16", ""}}) ==
        "dtype  tensors\n"
        "F32          3\n"
        "BF16\n");
}
