// SPDX-License-Identifier: Apache-2.0
#include "accelerate/base/exception_text.hpp"

#include <doctest/doctest.h>

#include <stdexcept>

using accelerate::base::exception_summary;
using accelerate::base::exception_text;

TEST_CASE("exception_summary() is the first line of exception_text()") {
  CHECK(exception_summary(std::make_exception_ptr(std::runtime_error("disk is gone\nat line 3"))) == "disk is gone");
  CHECK(exception_summary(std::make_exception_ptr(std::runtime_error(""))).empty());
  CHECK(exception_summary(std::make_exception_ptr(3)) == "an exception that is not a std::exception");
  CHECK(exception_text(std::make_exception_ptr(std::runtime_error("disk is gone\nat line 3"))) ==
        "disk is gone\nat line 3");
  CHECK(exception_text(std::make_exception_ptr(3)) == "an exception that is not a std::exception");
}
