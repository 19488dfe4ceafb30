// SPDX-License-Identifier: Apache-2.0
// Simulates a file system without locks, such as some network file systems.
#pragma once

#include <cerrno>

namespace testing {

/// During its lifetime flock() in this program fails with this error.
class NoLocks {
 public:
  explicit NoLocks(int error = ENOSYS);
  NoLocks(const NoLocks&) = delete;
  NoLocks& operator=(const NoLocks&) = delete;
  ~NoLocks();
};

}  // namespace testing
