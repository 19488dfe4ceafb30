// SPDX-License-Identifier: Apache-2.0
#include "launch/run/signals.hpp"

#include <sys/signalfd.h>
#include <unistd.h>

#include <initializer_list>

namespace accelerate::launch {

Signals::Signals() {
  sigset_t wanted;
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGCHLD);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    struct sigaction now {};
    if (sigaction(number, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) sigaddset(&wanted, number);
  }
  pthread_sigmask(SIG_BLOCK, &wanted, &before_);
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &pipe_before_);
  sigaction(SIGXFSZ, &ignore, &file_size_before_);
  struct sigaction ends_only {};
  ends_only.sa_handler = SIG_DFL;
  ends_only.sa_flags = SA_NOCLDSTOP;  // a suspended child would hide the next child that ends
  sigaction(SIGCHLD, &ends_only, &child_before_);
  fd_.reset(signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
}

Signals::~Signals() {
  sigaction(SIGCHLD, &child_before_, nullptr);
  sigaction(SIGXFSZ, &file_size_before_, nullptr);
  sigaction(SIGPIPE, &pipe_before_, nullptr);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

std::optional<Signal> Signals::next() const {
  signalfd_siginfo info{};
  if (read(fd_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
  return Signal{.number = static_cast<int>(info.ssi_signo), .sender = static_cast<pid_t>(info.ssi_pid)};
}

}  // namespace accelerate::launch
