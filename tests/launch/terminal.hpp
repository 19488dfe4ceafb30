// SPDX-License-Identifier: Apache-2.0
// A program at its own terminal, and a simulated user.
#pragma once

#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "accelerate/env/process_env.hpp"

namespace testing {

/// A session leader, killed by the destructor.
class AtTerminal {
 public:
  explicit AtTerminal(const std::vector<std::string>& command, const accelerate::env::Variables& variables = {}) {
    pid_ = forkpty(&terminal_, nullptr, nullptr, nullptr);
    if (pid_ != 0) return;
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> argv;
    for (const auto& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  ~AtTerminal() {
    hang_up();
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  AtTerminal(const AtTerminal&) = delete;
  AtTerminal& operator=(const AtTerminal&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }

  void hang_up() {
    if (terminal_ >= 0) close(terminal_);
    terminal_ = -1;
  }
  void type(const std::string& text) const {
    [[maybe_unused]] const auto count = write(terminal_, text.data(), text.size());
  }
  /// Types the line repeatedly until the terminal accepts no more. Returns the number of accepted bytes.
  [[nodiscard]] size_t type_until_full(const std::string& line) const {
    size_t taken = 0;
    const int flags = fcntl(terminal_, F_GETFL);
    fcntl(terminal_, F_SETFL, flags | O_NONBLOCK);
    for (int refused = 0; refused < 5;) {
      const auto count = write(terminal_, line.data(), line.size());
      if (count > 0) taken += static_cast<size_t>(count);
      if (count > 0) continue;
      ++refused;  // the kernel forwards input with a delay
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    fcntl(terminal_, F_SETFL, flags);
    return taken;
  }
  /// Reads until the screen ends with the text. Returns false if the program ends without it.
  bool see(const std::string& text) {
    char byte = 0;
    while (!screen_.ends_with(text) && read(terminal_, &byte, 1) == 1) screen_ += byte;
    return screen_.ends_with(text);
  }
  /// Reads to the end and returns the whole output.
  std::string read_all() {
    char byte = 0;
    while (read(terminal_, &byte, 1) == 1) screen_ += byte;
    return screen_;
  }
  /// The exit code, or 128 + signal.
  int wait() {
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

 private:
  pid_t pid_ = -1;
  int terminal_ = -1;
  std::string screen_;
};

}  // namespace testing
