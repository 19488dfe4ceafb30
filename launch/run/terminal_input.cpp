// SPDX-License-Identifier: Apache-2.0
#include "launch/run/terminal_input.hpp"

#include <fcntl.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <utility>

#include "launch/run/file_limit.hpp"

namespace accelerate::launch {
namespace {

/// No signal reports that a process group has moved to the foreground, so it is polled.
constexpr int kPollAgainMs = 200;

}  // namespace

TerminalInput::TerminalInput(bool wanted) {
  sigset_t reads;  // if this process moves to the background meanwhile, read() fails instead of stopping it
  sigemptyset(&reads);
  sigaddset(&reads, SIGTTIN);
  pthread_sigmask(SIG_BLOCK, &reads, &before_);
  if (!wanted || tcgetpgrp(STDIN_FILENO) < 0) return;
  // Opens the terminal again: O_NONBLOCK belongs to the open file description, which the shell shares.
  terminal_.reset(open("/dev/tty", O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!terminal_) return;
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) fail_to_open("pipe");
  theirs_.reset(ends[0]);
  ours_.reset(ends[1]);
  fcntl(ours_.get(), F_SETFL, O_NONBLOCK);
  fcntl(ours_.get(), F_SETPIPE_SZ, 1);  // one page, the minimum: there is space only after rank 0 has read everything
}

TerminalInput::~TerminalInput() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

base::FileDescriptor TerminalInput::take_rank_end() {
  end();
  return std::move(theirs_);
}

int TerminalInput::watch(pollfd& terminal, pollfd& pipe) {
  const bool hungry = ours_ && !full_;
  const bool reads = hungry && may_read();
  terminal = {.fd = reads ? terminal_.get() : -1, .events = POLLIN, .revents = 0};
  pipe = {.fd = ours_.get(), .events = static_cast<short>(full_ ? POLLOUT : 0), .revents = 0};
  return hungry && !reads ? kPollAgainMs : -1;
}

void TerminalInput::serve(const pollfd& terminal, const pollfd& pipe) {
  if ((pipe.revents & POLLERR) != 0) return end();  // rank 0 has ended, or closed its stdin
  if ((pipe.revents & POLLOUT) != 0) full_ = false;
  if (terminal.revents != 0 && may_read()) pass_on();
}

/// True in the foreground with line editing enabled. A pager that shows our output disables it and reads the keys.
bool TerminalInput::may_read() {
  const pid_t reader = tcgetpgrp(terminal_.get());
  if (reader < 0) end();  // the terminal is closed
  termios mode{};
  return reader == getpgrp() && tcgetattr(terminal_.get(), &mode) == 0 && (mode.c_lflag & ICANON) != 0;
}

void TerminalInput::pass_on() {
  std::array<char, PIPE_BUF> bytes;  // the longest line of a terminal; an empty pipe takes it as a whole
  const ssize_t count = read(terminal_.get(), bytes.data(), bytes.size());
  if (count < 0 && (errno == EAGAIN || errno == EINTR || !may_read())) return;  // the input was for another process
  if (count <= 0) return end();
  full_ = true;
  if (write(ours_.get(), bytes.data(), static_cast<size_t>(count)) < 0) end();
}

void TerminalInput::end() {
  ours_.reset();
  terminal_.reset();
}

}  // namespace accelerate::launch
