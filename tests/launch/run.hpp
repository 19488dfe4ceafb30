// SPDX-License-Identifier: Apache-2.0
// Runs a program as a user would, with captured output and a time limit.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "accelerate/env/process_env.hpp"

namespace testing {

struct Ran {
  int code = -1;  ///< 128 + signal
  std::string out;
  std::string err;
};

/// A child with captured stdout and stderr. Killed by the destructor.
class Child {
 public:
  Child(const std::vector<std::string>& command, const accelerate::env::Variables& variables = {}) {
    if (pipe2(out_.data(), O_CLOEXEC) != 0 || pipe2(err_.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe");
    std::vector<std::string> entries;
    auto all = accelerate::env::current_variables();
    for (const auto& [name, value] : variables) all[name] = value;
    for (const auto& [name, value] : all) entries.push_back(name + "=" + value);
    std::vector<char*> argv;
    for (const auto& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    std::vector<char*> envp;
    for (auto& entry : entries) envp.push_back(entry.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(out_[1], 1);
      dup2(err_[1], 2);
      execvpe(argv[0], argv.data(), envp.data());
      _exit(127);
    }
    close(out_[1]);
    close(err_[1]);
  }
  ~Child() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(out_[0]);
    close(err_[0]);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] const std::string& out() const { return ran_.out; }

  /// Reads until stdout contains the text. Returns false if the process ends or the time limit expires.
  bool wait_for(const std::string& text, std::chrono::seconds limit = std::chrono::seconds(60)) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (ran_.out.find(text) == std::string::npos) {
      if (std::chrono::steady_clock::now() > end || !read_some()) return false;
    }
    return true;
  }

  /// Waits for its end without reading its output. Returns false after the time limit.
  bool ends_unread(std::chrono::seconds limit = std::chrono::seconds(60)) {
    const auto end = std::chrono::steady_clock::now() + limit;
    siginfo_t info{};
    while (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  /// Reads to the end with at most 4 MB per second. Returns false if the time limit expires.
  bool ends_read_slowly(std::chrono::seconds limit = std::chrono::seconds(40)) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (read_some()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  /// Waits for the end of the process. After the time limit it is killed, and the code is 137.
  Ran wait(std::chrono::seconds limit = std::chrono::seconds(60)) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (read_some()) {
      if (std::chrono::steady_clock::now() > end) kill(pid_, SIGKILL);
    }
    int status = 0;
    while (waitpid(pid_, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > end) kill(pid_, SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    pid_ = -1;
    ran_.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    return ran_;
  }

 private:
  /// Returns false at the end of both streams.
  bool read_some() {
    std::array<pollfd, 2> waits{pollfd{done_[0] ? -1 : out_[0], POLLIN, 0}, pollfd{done_[1] ? -1 : err_[0], POLLIN, 0}};
    if (done_[0] && done_[1]) return false;
    poll(waits.data(), waits.size(), 100);
    std::array<char, 4096> buffer;
    for (size_t i = 0; i < 2; ++i) {
      if (waits[i].revents == 0) continue;
      const auto n = read(waits[i].fd, buffer.data(), buffer.size());
      if (n <= 0) done_[i] = true;
      if (n > 0) (i == 0 ? ran_.out : ran_.err).append(buffer.data(), static_cast<size_t>(n));
    }
    return true;
  }

  pid_t pid_ = -1;
  std::array<int, 2> out_{};
  std::array<int, 2> err_{};
  std::array<bool, 2> done_{};
  Ran ran_;
};

inline std::vector<std::string> launcher(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), TEST_BINARY_DIR "/bin/accelerate_launch");
  return arguments;
}

/// accelerate_launch with a free port.
inline Ran launch(const std::vector<std::string>& arguments, const accelerate::env::Variables& variables = {}) {
  std::vector<std::string> all{"--main_process_port", "0"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return Child(launcher(all), variables).wait();
}

/// True if a process with this id runs (a zombie does not).
inline bool alive(pid_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  std::array<char, 512> buffer{};
  const auto n = read(fd, buffer.data(), buffer.size() - 1);
  close(fd);
  const std::string text(buffer.data(), n > 0 ? static_cast<size_t>(n) : 0);
  const auto name_end = text.rfind(')');
  return name_end != std::string::npos && name_end + 2 < text.size() && text[name_end + 2] != 'Z';
}

/// Processes check for leaks at exit with the address sanitizer, and sleep at exit with the thread sanitizer.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr auto a_second_alone = std::chrono::seconds(3);
#else
constexpr auto a_second_alone = std::chrono::seconds(1);
#endif

struct Waited {
  std::chrono::milliseconds took{};
  /// Length of a second on this machine under its current load. Some ten events in sequence (a signal, an exit, a reap,
  /// a removal) may each wait for a processor as long as the longest observed delay.
  std::chrono::milliseconds a_second{};
};

/// Time from a fault until a condition is true; at most 30 s.
template <typename Condition, typename Fault>
Waited time_until(const Condition& is_so, const Fault& fault) {
  using namespace std::chrono;
  constexpr auto nap = milliseconds(2);
  auto worst = steady_clock::duration::zero();
  const auto start = steady_clock::now();
  fault();
  auto now = steady_clock::now();
  while (!is_so() && now - start < seconds(30)) {
    const auto before = now;
    std::this_thread::sleep_for(nap);
    now = steady_clock::now();
    worst = std::max(worst, now - before - nap);
  }
  return {.took = duration_cast<milliseconds>(now - start),
          .a_second = duration_cast<milliseconds>(a_second_alone + 10 * worst)};
}

/// Waits up to a minute for the process to end, because a busy machine may end a killed process late. Logs the state of
/// one that remains.
inline bool gone(pid_t pid) {
  for (int i = 0; i < 6000 && alive(pid); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  if (!alive(pid)) return true;
  const std::string show = "grep -E 'Name|State|PPid|Sig|Shd' /proc/" + std::to_string(pid) + "/status >&2";
  [[maybe_unused]] const int shown = std::system(show.c_str());
  return false;
}

}  // namespace testing
