// SPDX-License-Identifier: Apache-2.0
#include "launch/run/spawn.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <vector>

namespace accelerate::launch {
namespace {

struct Channel {
  int ours = -1;
  int theirs = -1;
};

[[noreturn]] void cannot(const char* what) {
  throw LaunchError(1, fmt::format("accelerate_launch: {} failed: {}", what, std::strerror(errno)));
}

/// A terminal of its own where our stream is one, so that a worker's progress bar and colours stay: it asks isatty().
bool open_terminal(int like, Channel& channel) {
  channel.ours = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  std::array<char, 64> name{};
  if (channel.ours < 0 || grantpt(channel.ours) != 0 || unlockpt(channel.ours) != 0 ||
      ptsname_r(channel.ours, name.data(), name.size()) != 0) {
    if (channel.ours >= 0) close(channel.ours);
    return false;
  }
  channel.theirs = open(name.data(), O_RDWR | O_NOCTTY | O_CLOEXEC);
  termios mode{};
  if (tcgetattr(channel.theirs, &mode) == 0) {
    cfmakeraw(&mode);  // bytes pass unchanged; our own terminal does the line endings
    tcsetattr(channel.theirs, TCSANOW, &mode);
  }
  winsize size{};
  if (ioctl(like, TIOCGWINSZ, &size) == 0) ioctl(channel.theirs, TIOCSWINSZ, &size);
  return true;
}

Channel open_channel(int like) {
  Channel channel;
  if (isatty(like) == 0 || !open_terminal(like, channel)) {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) cannot("pipe");
    channel = {.ours = ends[0], .theirs = ends[1]};
  }
  fcntl(channel.ours, F_SETFL, O_NONBLOCK);
  return channel;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (auto& s : strings) result.push_back(s.data());
  result.push_back(nullptr);
  return result;
}

/// Everything the child needs, made before the fork: afterwards only async-signal-safe calls are allowed.
struct Exec {
  const char* program;
  char** argv;
  char** envp;
  int in, out, err, report;
  pid_t launcher;
};

[[noreturn]] void become(const Exec& exec) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != exec.launcher) _exit(126);  // it died before the line above
  dup2(exec.in, STDIN_FILENO);
  dup2(exec.out, STDOUT_FILENO);
  dup2(exec.err, STDERR_FILENO);
  signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(exec.program, exec.argv, exec.envp);
  const int error = errno;
  [[maybe_unused]] const auto written = write(exec.report, &error, sizeof error);
  _exit(126);
}

bool is_file(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && !S_ISDIR(status.st_mode);
}

}  // namespace

std::string find_program(const std::string& name, const env::Variables& variables) {
  const auto path = variables.find("PATH");
  std::string found = name.find('/') != std::string::npos && is_file(name) ? name : "";
  if (name.find('/') == std::string::npos && path != variables.end()) {
    std::istringstream folders(path->second);
    for (std::string folder; found.empty() && std::getline(folders, folder, ':');) {
      const std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
      if (is_file(candidate) && access(candidate.c_str(), X_OK) == 0) found = candidate;
    }
  }
  struct stat status {};
  if (found.empty() && stat(name.c_str(), &status) == 0 && name.find('/') != std::string::npos) {
    throw LaunchError(126, fmt::format("accelerate_launch: {} is a folder, not a program", name));
  }
  if (found.empty() && name.find('/') == std::string::npos && is_file(name)) {
    throw LaunchError(127,
                      fmt::format("accelerate_launch: {} is not in PATH; the one in this folder is ./{}", name, name));
  }
  if (found.empty()) throw LaunchError(127, fmt::format("accelerate_launch: {} not found", name));
  if (access(found.c_str(), X_OK) != 0) {
    throw LaunchError(126, fmt::format("accelerate_launch: {} is not executable; chmod +x {} allows it", name, name));
  }
  return found;
}

Process spawn(const std::string& program, const WorkerPlan& worker) {
  std::vector<std::string> arguments = worker.command;
  std::vector<std::string> variables;
  for (const auto& [name, value] : worker.environment) variables.push_back(name + "=" + value);
  auto argv = pointers(arguments);
  auto envp = pointers(variables);

  const bool keeps_stdin = worker.rank == 0 && isatty(STDIN_FILENO) == 0 && fcntl(STDIN_FILENO, F_GETFD) >= 0;
  const int in = keeps_stdin ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3) : open("/dev/null", O_RDONLY | O_CLOEXEC);
  const Channel out = open_channel(STDOUT_FILENO);
  const Channel err = open_channel(STDERR_FILENO);
  std::array<int, 2> report{};
  if (in < 0 || pipe2(report.data(), O_CLOEXEC) != 0) cannot("pipe");

  const Exec exec{program.c_str(), argv.data(), envp.data(), in, out.theirs, err.theirs, report[1], getpid()};
  const pid_t pid = fork();
  if (pid == 0) become(exec);
  const int fork_error = errno;
  for (const int fd : {in, out.theirs, err.theirs, report[1]}) close(fd);
  int error = fork_error;
  bool failed = pid < 0;
  if (!failed) failed = read(report[0], &error, sizeof error) == sizeof error;  // end of file: it runs
  close(report[0]);
  if (!failed) return {.pid = pid, .out = out.ours, .err = err.ours};
  close(out.ours);
  close(err.ours);
  if (pid > 0) waitpid(pid, nullptr, 0);
  throw LaunchError(pid < 0 ? 1 : 126, fmt::format("accelerate_launch: {} cannot be run: {}", worker.command.front(),
                                                   std::strerror(error)));
}

}  // namespace accelerate::launch
