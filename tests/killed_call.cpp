// SPDX-License-Identifier: Apache-2.0
#include "tests/killed_call.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace testing {
namespace {

int calls_left = 0;  // 0 disables the count

void count() {
  if (calls_left > 0 && --calls_left == 0) ::raise(SIGKILL);
}

}  // namespace

bool killed_at_call(int n, const std::function<void()>& run) {
  const pid_t child = ::fork();
  if (child == 0) {
    calls_left = n;
    run();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

}  // namespace testing

/// Replace the functions of the C library in this program.
extern "C" {
int rename(const char* from, const char* to) noexcept {
  testing::count();
  return static_cast<int>(::syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to));
}
int unlink(const char* path) noexcept {
  testing::count();
  return static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}
int remove(const char* path) noexcept {
  testing::count();
  const auto taken = ::syscall(SYS_unlinkat, AT_FDCWD, path, 0);
  if (taken == 0 || errno != EISDIR) return static_cast<int>(taken);
  return static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR));
}
}
