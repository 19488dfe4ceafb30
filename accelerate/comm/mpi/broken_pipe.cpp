// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/mpi/broken_pipe.hpp"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

namespace accelerate::comm {
namespace {

// A signal handler does not get the file descriptor of the failed write.
extern "C" void end_if_output_is_closed(int) {
  const int error = errno;
  std::array<pollfd, 2> outputs{{{STDOUT_FILENO, 0, 0}, {STDERR_FILENO, 0, 0}}};
  const bool is_known = ::poll(outputs.data(), outputs.size(), 0) > 0;
  if (is_known && ((outputs[0].revents | outputs[1].revents) & POLLERR) != 0) {
    ::signal(SIGPIPE, SIG_DFL);
    ::raise(SIGPIPE);  // delivered when this handler returns
  }
  errno = error;
}

}  // namespace

void keep_running_after_broken_pipes() noexcept {
  struct sigaction before {};
  if (::sigaction(SIGPIPE, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) return;
  struct sigaction handler {};
  handler.sa_handler = end_if_output_is_closed;
  ::sigemptyset(&handler.sa_mask);
  handler.sa_flags = SA_RESTART;
  ::sigaction(SIGPIPE, &handler, nullptr);
}

}  // namespace accelerate::comm
