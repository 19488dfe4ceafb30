// SPDX-License-Identifier: Apache-2.0
#include "accelerate/base/file_descriptor.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>

using accelerate::base::FileDescriptor;

namespace {

bool is_open(int number) { return fcntl(number, F_GETFD) >= 0; }
int open_something() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

}  // namespace

TEST_CASE("the owner's destructor closes the descriptor") {
  int number = -1;
  {
    const FileDescriptor owner(open_something());
    REQUIRE(owner);
    number = owner.get();
    CHECK(is_open(number));
  }
  CHECK_FALSE(is_open(number));
}

TEST_CASE("a descriptor has one owner at a time") {
  FileDescriptor first(open_something());
  const int number = first.get();
  FileDescriptor second(std::move(first));
  CHECK_FALSE(first);
  FileDescriptor third;
  third = std::move(second);
  CHECK_FALSE(second);
  CHECK(third.get() == number);
  CHECK(third.release() == number);
  CHECK(is_open(number));
  third.reset(number);
  third.reset();
  CHECK_FALSE(is_open(number));
}

TEST_CASE("closing keeps errno") {
  FileDescriptor owner(open_something());
  errno = ENOSPC;
  owner.reset();
  CHECK(errno == ENOSPC);
}
