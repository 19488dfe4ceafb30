// SPDX-License-Identifier: Apache-2.0
#include "launch/run/orphans.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace accelerate::launch {
namespace {

namespace fs = std::filesystem;

pid_t number_of(const std::string& text) {
  pid_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : 0;
}

/// Returns the parent's id in "4121 (train) S 4120 ...". The process name may contain any characters.
pid_t parent_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  const auto name_end = line.rfind(") ");
  if (name_end == std::string::npos || name_end + 4 > line.size()) return 0;
  const auto begin = name_end + 4;
  return number_of(line.substr(begin, line.find(' ', begin) - begin));
}

bool has_children() {
  siginfo_t info{};
  return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
}

}  // namespace

SubReaper::SubReaper() {
  prctl(PR_GET_CHILD_SUBREAPER, &before_);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

SubReaper::~SubReaper() { prctl(PR_SET_CHILD_SUBREAPER, before_); }

std::set<pid_t> children() {
  std::set<pid_t> found;
  if (!has_children()) return found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
    const pid_t pid = number_of(entry.path().filename());
    if (pid > 0 && parent_of(pid) == getpid()) found.insert(pid);
  }
  return found;
}

std::vector<pid_t> Orphans::living() const {
  std::vector<pid_t> living;
  for (bool look = true; look;) {
    look = false;
    living.clear();
    for (const pid_t pid : children()) {
      if (not_ours_.contains(pid)) continue;
      if (waitpid(pid, nullptr, WNOHANG) == 0) {
        living.push_back(pid);
      } else {
        look = true;  // its children were re-parented to this process, possibly after this loop had passed them
      }
    }
  }
  return living;
}

void Orphans::signal_once(int number) {
  for (const pid_t pid : living()) {
    if (signalled_.insert(pid).second) kill(pid, number);
  }
}

std::string Orphans::end() const {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  auto left = living();
  while (!left.empty() && std::chrono::steady_clock::now() < until) {
    for (const pid_t pid : left) kill(pid, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    left = living();
  }
  if (left.empty()) return "";
  return fmt::format("accelerate_launch: {} {}, left behind by a rank, could not be killed\n",
                     left.size() == 1 ? "process" : "processes", fmt::join(left, ", "));
}

}  // namespace accelerate::launch
