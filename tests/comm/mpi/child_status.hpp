// SPDX-License-Identifier: Apache-2.0
// Calls that change the whole process, such as its signal handlers and loaded libraries, in a child process.
#pragma once

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace testing {

/// Status of a child process that runs the function and exits with the code that it returns.
template <typename Function>
int status_of_child(const Function& function) {
  const pid_t child = fork();
  if (child == 0) _exit(function());
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return status;
}

}  // namespace testing
