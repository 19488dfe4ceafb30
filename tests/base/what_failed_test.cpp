// SPDX-License-Identifier: Apache-2.0
#include "accelerate/base/what_failed.hpp"

#include <doctest/doctest.h>

#include <stdexcept>

using accelerate::base::text_of;
using accelerate::base::what_failed;

TEST_CASE("an exception is the first line of its text") {
  CHECK(what_failed(std::make_exception_ptr(std::runtime_error("disk is gone\nat line 3"))) == "disk is gone");
  CHECK(what_failed(std::make_exception_ptr(std::runtime_error(""))).empty());
  CHECK(what_failed(std::make_exception_ptr(3)) == "an exception that is not a std::exception");
  CHECK(text_of(std::make_exception_ptr(std::runtime_error("disk is gone\nat line 3"))) == "disk is gone\nat line 3");
  CHECK(text_of(std::make_exception_ptr(3)) == "an exception that is not a std::exception");
}
