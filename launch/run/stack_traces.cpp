// SPDX-License-Identifier: Apache-2.0
#include "launch/run/stack_traces.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <string>
#include <vector>

#include "accelerate/base/file_descriptor.hpp"
#include "launch/plan/error.hpp"
#include "launch/run/spawn.hpp"

namespace accelerate::launch {
namespace {

using Clock = std::chrono::steady_clock;

/// The tool and its arguments; empty if no tool is installed.
std::vector<std::string> tracer(pid_t pid) {
  const auto variables = env::current_variables();
  const auto number = std::to_string(pid);
  for (auto command : {std::vector<std::string>{"eu-stack", "-p", number},
                       std::vector<std::string>{"gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off", "-p",
                                                number, "-ex", "thread apply all backtrace 40"}}) {
    try {
      command.front() = find_program(command.front(), variables);
      return command;
    } catch (const LaunchError&) {  // tries the next tool
    }
  }
  return {};
}

/// Runs in a child: executes the command with its output in the pipe.
[[noreturn]] void become_tracer(std::vector<char*>& argv, int out) {
  const base::FileDescriptor nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  dup2(nothing.get(), STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(out, STDERR_FILENO);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execv(argv.front(), argv.data());
  _exit(127);
}

/// Reads to the end of file, or until `end`.
std::string read_until(int fd, Clock::time_point end) {
  std::string text;
  std::array<char, 65536> buffer;
  for (auto now = Clock::now(); now < end; now = Clock::now()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - now).count();
    pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
    if (poll(&wait, 1, static_cast<int>(left) + 1) <= 0) continue;
    const ssize_t n = read(fd, buffer.data(), buffer.size());
    if (n <= 0) return text;
    text.append(buffer.data(), static_cast<size_t>(n));
  }
  return text + "(cut here: the time for stacks is over)\n";
}

}  // namespace

std::string stacks_of(pid_t pid, std::chrono::milliseconds limit) {
  auto command = tracer(pid);
  if (command.empty()) return "no stacks: neither eu-stack nor gdb is installed\n";
  std::vector<char*> argv;
  for (auto& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return "no stacks: no pipe is to be had\n";
  const base::FileDescriptor ours(ends[0]);
  base::FileDescriptor theirs(ends[1]);
  const pid_t child = fork();
  if (child == 0) become_tracer(argv, theirs.get());
  theirs.reset();
  auto text = read_until(ours.get(), Clock::now() + limit);
  if (child > 0) kill(child, SIGKILL);
  if (child > 0) waitpid(child, nullptr, 0);
  if (!text.empty() && text.back() != '\n') text += '\n';
  return text;
}

}  // namespace accelerate::launch
