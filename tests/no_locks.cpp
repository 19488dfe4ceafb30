// SPDX-License-Identifier: Apache-2.0
#include "tests/no_locks.hpp"

#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace testing {
namespace {

int refusal_of_locks = 0;  // 0 if the file system supports locks

}  // namespace

NoLocks::NoLocks(int error) { refusal_of_locks = error; }
NoLocks::~NoLocks() { refusal_of_locks = 0; }

}  // namespace testing

/// Replaces the function of the C library in this program.
extern "C" int flock(int fd, int operation) noexcept {
  if (testing::refusal_of_locks == 0) return static_cast<int>(syscall(SYS_flock, fd, operation));
  errno = testing::refusal_of_locks;
  return -1;
}
