// SPDX-License-Identifier: Apache-2.0
// A file system without locks, as some networks' are.
#pragma once

#include <cerrno>

namespace testing {

/// While it lives flock() of this program refuses with this error.
class NoLocks {
 public:
  explicit NoLocks(int error = ENOSYS);
  NoLocks(const NoLocks&) = delete;
  NoLocks& operator=(const NoLocks&) = delete;
  ~NoLocks();
};

}  // namespace testing
