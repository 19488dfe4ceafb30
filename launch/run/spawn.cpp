// SPDX-License-Identifier: Apache-2.0
#include "launch/run/spawn.hpp"

#include <fcntl.h>
#include <sched.h>
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
#include <utility>
#include <vector>

#include "launch/plan/error.hpp"
#include "launch/run/exec_diagnostics.hpp"
#include "launch/run/file_limit.hpp"

namespace accelerate::launch {
namespace {

using base::FileDescriptor;

struct Channel {
  FileDescriptor ours{};
  FileDescriptor theirs{};
};

/// Opens a pseudo-terminal if our stream is a terminal, so that a worker's progress bar and colours remain: workers
/// call isatty(). Returns an empty channel if the system has no free terminal.
Channel open_terminal(int like) {
  Channel channel{.ours = FileDescriptor(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC))};
  const int ours = channel.ours.get();
  std::array<char, 64> name{};
  if (ours < 0 || grantpt(ours) != 0 || unlockpt(ours) != 0 || ptsname_r(ours, name.data(), name.size()) != 0)
    return {};
  channel.theirs.reset(open(name.data(), O_RDWR | O_NOCTTY | O_CLOEXEC));
  const int theirs = channel.theirs.get();
  if (theirs < 0) return {};
  termios mode{};
  if (tcgetattr(theirs, &mode) == 0) {
    cfmakeraw(&mode);  // bytes pass unchanged; the launcher's terminal converts line ends
    tcsetattr(theirs, TCSANOW, &mode);
  }
  winsize size{};
  if (ioctl(like, TIOCGWINSZ, &size) == 0) ioctl(theirs, TIOCSWINSZ, &size);
  return channel;
}

Channel open_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) fail_to_open("pipe");
  return {.ours = FileDescriptor(ends[0]), .theirs = FileDescriptor(ends[1])};
}

Channel open_channel(int like) {
  Channel channel = isatty(like) != 0 ? open_terminal(like) : Channel{};
  if (!channel.ours) channel = open_pipe();
  fcntl(channel.ours.get(), F_SETFL, O_NONBLOCK);
  return channel;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (auto& s : strings) result.push_back(s.data());
  result.push_back(nullptr);
  return result;
}

/// All data of the child, prepared before the fork, because only async-signal-safe calls are allowed afterwards.
struct Exec {
  const char* program;
  char** argv;
  char** envp;
  int in, out, err, report;
  pid_t launcher;
  const rlimit* open_files;
  const cpu_set_t* processors;  // null for the launcher's processors
};

[[noreturn]] void become(const Exec& exec) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != exec.launcher) _exit(126);  // the launcher died before prctl()
  dup2(exec.in, STDIN_FILENO);
  dup2(exec.out, STDOUT_FILENO);
  dup2(exec.err, STDERR_FILENO);
  signal(SIGPIPE, SIG_DFL);
  signal(SIGXFSZ, SIG_DFL);
  setrlimit(RLIMIT_NOFILE, exec.open_files);
  // May fail if the launcher has lost these processors since; the rank then runs on those that are allowed.
  if (exec.processors != nullptr) sched_setaffinity(0, sizeof *exec.processors, exec.processors);
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

/// Checks a name with a slash, which is a path. Throws with the system's error text if it is missing or is not a file.
void check_file(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) {
    const int error = errno;
    if (error == ENOENT) fail_with(127, ErrorKind::usage, "{} not found: {}", path, std::strerror(error));
    fail_with(126, ErrorKind::usage, "{} cannot be run: {}", path, std::strerror(error));
  }
  if (S_ISDIR(status.st_mode)) fail_with(126, ErrorKind::usage, "{} is a folder, not a program", path);
}

/// Returns the first program of this name in the folders of PATH, or "".
std::string find_in_path(const std::string& name, const env::Variables& variables) {
  const auto path = variables.find("PATH");
  if (path == variables.end()) return "";
  std::istringstream folders(path->second);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (is_file(candidate) && access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return "";
}

}  // namespace

std::string find_program(const std::string& name, const env::Variables& variables) {
  if (name.find('/') == std::string::npos) {
    const std::string found = find_in_path(name, variables);
    if (found.empty() && is_file(name)) {
      fail_with(127, ErrorKind::usage, "{} is not in PATH; the one in this folder is ./{}", name, name);
    }
    if (found.empty()) fail_with(127, ErrorKind::usage, "{} not found in PATH", name);
    return found;
  }
  check_file(name);
  if (access(name.c_str(), X_OK) != 0) {
    const int error = errno;
    fail_with(126, ErrorKind::usage, "{} is not executable: {}; chmod +x {} allows it", name, std::strerror(error),
              name);
  }
  return name;
}

bool is_program(const std::string& name, const env::Variables& variables) {
  try {
    (void)find_program(name, variables);
    return true;
  } catch (const LaunchError&) {
    return false;
  }
}

Process spawn(const std::string& program, const WorkerPlan& worker, const rlimit& open_files, int input) {
  std::vector<std::string> arguments = worker.command;
  std::vector<std::string> variables;
  for (const auto& [name, value] : worker.environment) variables.push_back(name + "=" + value);
  auto argv = pointers(arguments);
  auto envp = pointers(variables);

  const int source = isatty(STDIN_FILENO) == 0 ? STDIN_FILENO : input;
  const bool reads = worker.rank == 0 && fcntl(source, F_GETFD) >= 0;
  FileDescriptor in(reads ? fcntl(source, F_DUPFD_CLOEXEC, 3) : open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!in) fail_to_open("open /dev/null");
  Channel out = open_channel(STDOUT_FILENO);
  Channel err = open_channel(STDERR_FILENO);
  Channel report = open_pipe();

  cpu_set_t processors;
  CPU_ZERO(&processors);
  for (const int each : worker.processors) CPU_SET(each, &processors);
  const Exec exec{.program = program.c_str(),
                  .argv = argv.data(),
                  .envp = envp.data(),
                  .in = in.get(),
                  .out = out.theirs.get(),
                  .err = err.theirs.get(),
                  .report = report.theirs.get(),
                  .launcher = getpid(),
                  .open_files = &open_files,
                  .processors = worker.processors.empty() ? nullptr : &processors};
  const pid_t pid = fork();
  if (pid == 0) become(exec);
  int error = errno;
  report.theirs.reset();
  // end of file means that exec succeeded
  const bool runs = pid > 0 && read(report.ours.get(), &error, sizeof error) != sizeof error;
  if (runs) return {.pid = pid, .out = std::move(out.ours), .err = std::move(err.ours)};
  if (pid > 0) waitpid(pid, nullptr, 0);
  fail_with(pid < 0 ? 1 : 126, ErrorKind::environment, "{} cannot be run: {}", worker.command.front(),
            pid < 0 ? std::strerror(error) : exec_error_reason(program, error));
}

}  // namespace accelerate::launch
