// SPDX-License-Identifier: Apache-2.0
#include "launch/runners/piped_child.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "launch/plan/error.hpp"
#include "launch/run/failure_report.hpp"
#include "launch/run/file_limit.hpp"

namespace accelerate::launch {
namespace {

std::vector<char*> to_pointers(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

PipedChild::PipedChild(const std::string& program, std::vector<std::string> arguments,
                       std::vector<std::string> variables, int death) {
  auto argv = to_pointers(arguments);
  auto envp = to_pointers(variables);
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) fail_to_open("pipe");
  input_.reset(ends[1]);
  const base::FileDescriptor theirs(ends[0]);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) fail(ErrorKind::environment, "{} cannot be started: {}", program, std::strerror(errno));
  if (pid_ == 0) {
    setpgid(0, 0);  // signals to the process group are for this process, which forwards them itself
    prctl(PR_SET_PDEATHSIG, death);
    if (getppid() != parent) _exit(126);
    dup2(theirs.get(), STDIN_FILENO);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execvpe(program.c_str(), argv.data(), envp.data());
    dprintf(STDERR_FILENO, "accelerate_launch: %s cannot be started: %s\n", program.c_str(), std::strerror(errno));
    _exit(errno == ENOENT ? 127 : 126);
  }
  fcntl(input_.get(), F_SETFL, O_NONBLOCK);
}

PipedChild::~PipedChild() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void PipedChild::send_signal(int signal) const {
  if (pid_ > 0) kill(pid_, signal);
}

int PipedChild::exit_code() {
  int status = 0;
  if (pid_ <= 0 || waitpid(pid_, &status, WNOHANG) != pid_) return -1;
  pid_ = -1;
  return exit_code_of(status);
}

void PipedChild::send(std::string_view bytes) {
  waiting_ += bytes;
  flush();
}

void PipedChild::end_input() {
  ends_ = true;
  flush();
}

void PipedChild::flush() {
  while (!waiting_.empty() && input_) {
    const ssize_t count = write(input_.get(), waiting_.data(), waiting_.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count < 0) ends_ = true;  // the child no longer reads
    waiting_.erase(0, count < 0 ? waiting_.size() : static_cast<size_t>(count));
  }
  if (ends_) input_.reset();
}

}  // namespace accelerate::launch
