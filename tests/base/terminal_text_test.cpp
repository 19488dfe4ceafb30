// SPDX-License-Identifier: Apache-2.0
#include "accelerate/base/terminal_text.hpp"

#include <doctest/doctest.h>

#include <string>

using accelerate::base::escape_for_terminal;
using accelerate::base::quote_for_terminal;

TEST_CASE("control characters for the terminal are printed as bytes, other text is unchanged") {
  CHECK(escape_for_terminal("conv.weight \xc3\xa4 \xe2\x82\xac \xc2\xa0") ==
        "conv.weight \xc3\xa4 \xe2\x82\xac \xc2\xa0");
  CHECK(escape_for_terminal("a\x1b[2J\nb\x7f") == "a\\x1b[2J\\x0ab\\x7f");
  CHECK(escape_for_terminal("\xc2\x9b") == "\xc2\\x9b");
}

TEST_CASE("quoted text is printable and cut after 60 bytes") {
  CHECK(quote_for_terminal("") == "''");
  CHECK(quote_for_terminal("conv.weight \xc3\xa4") == "'conv.weight \xc3\xa4'");
  CHECK(quote_for_terminal("a\x1b[2J\xc2\x9b") == "'a\\x1b[2J\xc2\\x9b'");
  CHECK(quote_for_terminal(std::string(60, 'x')) == "'" + std::string(60, 'x') + "'");
  CHECK(quote_for_terminal(std::string(61, 'x')) == "'" + std::string(60, 'x') + "...'");
}
