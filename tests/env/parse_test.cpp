// SPDX-License-Identifier: Apache-2.0
#include "accelerate/env/parse.hpp"

#include <doctest/doctest.h>

namespace env = accelerate::env;

TEST_CASE("an integer consists of digits and a sign") {
  CHECK(env::parse_integer("0") == 0);
  CHECK(env::parse_integer("-12") == -12);
  CHECK(env::parse_integer("9223372036854775807") == INT64_MAX);
  for (const char* text : {"", " 1", "1 ", "+1", "1.0", "0x1", "one", "9223372036854775808"}) {
    CAPTURE(text);
    CHECK(env::parse_integer(text) == std::nullopt);
  }
}

TEST_CASE("booleans are Accelerate's twelve words in any case") {
  for (const char* text : {"y", "yes", "t", "true", "on", "1", "True", "YES"}) CHECK(env::parse_bool(text) == true);
  for (const char* text : {"n", "no", "f", "false", "off", "0", "False", "OFF"}) CHECK(env::parse_bool(text) == false);
  for (const char* text : {"", "2", "ja", "true ", "yess"}) CHECK(env::parse_bool(text) == std::nullopt);
}

TEST_CASE("an empty variable counts as not set") {
  const env::Variables variables{{"A", "x"}, {"B", ""}};
  CHECK(env::find(variables, "A") == "x");
  CHECK(env::find(variables, "B") == std::nullopt);
  CHECK(env::find(variables, "C") == std::nullopt);
}

TEST_CASE("a device is cpu, or an accelerator's name with an optional index") {
  using env::DeviceName;
  CHECK(env::parse_device("cpu") == DeviceName{});
  CHECK(env::parse_device("cpu:0") == DeviceName{});
  CHECK(env::parse_device("cuda") == DeviceName{.type = "cuda"});
  CHECK(env::parse_device("cuda:64") == DeviceName{.type = "cuda", .index = 64});
  CHECK(env::parse_device("xpu:1") == DeviceName{.type = "xpu", .index = 1});
  for (const char* text : {"", ":1", "cuda:", "cuda:1x", "cuda:-1", "cpu:1", "CUDA", "gpu0"}) {
    CAPTURE(text);
    CHECK_FALSE(env::parse_device(text));
  }
}
