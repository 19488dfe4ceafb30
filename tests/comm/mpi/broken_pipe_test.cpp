// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/mpi/broken_pipe.hpp"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "tests/comm/mpi/child_status.hpp"

namespace {

/// Status of a child process in which SIGPIPE has its default effect at first.
template <typename Function>
int status_with_default_signal(const Function& function) {
  return testing::status_of_child([&] {
    signal(SIGPIPE, SIG_DFL);
    return function();
  });
}

/// Returns the errno of a write to a socket that the other side has closed, or 0.
int write_to_closed_socket() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) return 1;
  close(ends[1]);
  return write(ends[0], "x", 1) < 0 ? errno : 0;
}

/// Makes a pipe without a reader the standard output, and writes to it.
int write_to_closed_output() {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return 1;
  close(ends[0]);
  dup2(ends[1], STDOUT_FILENO);
  return write(STDOUT_FILENO, "x", 1) < 0 ? errno : 0;
}

}  // namespace

TEST_CASE("a write to the socket of an ended rank fails and does not end this rank") {
  const int alone = status_with_default_signal(write_to_closed_socket);
  CHECK((WIFSIGNALED(alone) && WTERMSIG(alone) == SIGPIPE));
  const int status = status_with_default_signal([] {
    accelerate::comm::keep_running_after_broken_pipes();
    return write_to_closed_socket();
  });
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == EPIPE));
}

TEST_CASE("a closed standard output ends the rank with SIGPIPE") {
  const int status = status_with_default_signal([] {
    accelerate::comm::keep_running_after_broken_pipes();
    return write_to_closed_output();
  });
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE));
}

TEST_CASE("a program that ignores or handles SIGPIPE keeps its disposition") {
  const int status = status_with_default_signal([] {
    signal(SIGPIPE, SIG_IGN);
    accelerate::comm::keep_running_after_broken_pipes();
    return write_to_closed_output();
  });
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == EPIPE));
}
