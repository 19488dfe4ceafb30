// SPDX-License-Identifier: Apache-2.0
#include "launch/run/guardian.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "launch/run/file_limit.hpp"
#include "launch/run/orphans.hpp"

namespace accelerate::launch {
namespace {

using base::FileDescriptor;

/// A pipe: its read end and its write end.
std::pair<FileDescriptor, FileDescriptor> two_ends() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) fail_to_open("pipe");
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

void broadcast_message(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno != EINTR) return;  // the launcher has died
    if (n > 0) text.remove_prefix(static_cast<size_t>(n));
  }
}

/// Runs in the child.
[[noreturn]] void guard(const std::function<AttemptResult(int)>& work, int launcher_gone, int to_launcher) {
  setpgid(0, 0);  // signals to the launcher's process group (Ctrl-C, kill) are forwarded by the launcher
  prctl(PR_SET_NAME, "launch_guardian");
  sigset_t writes;  // a background group may still write to its terminal
  sigemptyset(&writes);
  sigaddset(&writes, SIGTTOU);
  pthread_sigmask(SIG_BLOCK, &writes, nullptr);
  const SubReaper reaper;
  AttemptResult outcome;
  try {
    outcome = work(launcher_gone);
  } catch (const std::exception& error) {
    outcome = attempt_result_of(error);
  }
  broadcast_message(to_launcher, to_text(outcome));
  _exit(0);
}

}  // namespace

Guardian::Guardian(const std::function<AttemptResult(int)>& work) {
  auto [launcher_gone, lifeline] = two_ends();
  auto [outcome, to_launcher] = two_ends();
  pid_ = fork();
  if (pid_ < 0) fail(ErrorKind::environment, "no process can be started: {}", std::strerror(errno));
  if (pid_ == 0) {
    lifeline.reset();
    outcome.reset();
    guard(work, launcher_gone.get(), to_launcher.get());
  }
  lifeline_ = std::move(lifeline);
  outcome_ = std::move(outcome);
}

Guardian::~Guardian() {
  if (!runs_) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void Guardian::send_signal(int number) const {
  if (runs_) kill(pid_, number);
}

std::optional<AttemptResult> Guardian::outcome() {
  std::string text;
  std::array<char, 4096> buffer;
  for (ssize_t n = 1; n != 0;) {
    n = read(outcome_.get(), buffer.data(), buffer.size());
    if (n < 0 && errno != EINTR) break;
    if (n > 0) text.append(buffer.data(), static_cast<size_t>(n));
  }
  while (runs_ && waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
  }
  runs_ = false;
  return parse_attempt_result(text);
}

}  // namespace accelerate::launch
