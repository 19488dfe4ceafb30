// SPDX-License-Identifier: Apache-2.0
#include "accelerate/base/printable.hpp"

#include <doctest/doctest.h>

#include <string>

using accelerate::base::in_quotes;
using accelerate::base::printable;

TEST_CASE("what would steer the terminal is shown as bytes, all else as it is") {
  CHECK(printable("conv.weight \xc3\xa4 \xe2\x82\xac \xc2\xa0") == "conv.weight \xc3\xa4 \xe2\x82\xac \xc2\xa0");
  CHECK(printable("a\x1b[2J\nb\x7f") == "a\\x1b[2J\\x0ab\\x7f");
  CHECK(printable("\xc2\x9b") == "\xc2\\x9b");
}

TEST_CASE("a text in quotes is printable, and cut after 60 bytes") {
  CHECK(in_quotes("") == "''");
  CHECK(in_quotes("conv.weight \xc3\xa4") == "'conv.weight \xc3\xa4'");
  CHECK(in_quotes("a\x1b[2J\xc2\x9b") == "'a\\x1b[2J\xc2\\x9b'");
  CHECK(in_quotes(std::string(60, 'x')) == "'" + std::string(60, 'x') + "'");
  CHECK(in_quotes(std::string(61, 'x')) == "'" + std::string(60, 'x') + "...'");
}
