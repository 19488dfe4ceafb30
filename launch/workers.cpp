// SPDX-License-Identifier: Apache-2.0
#include "launch/workers.hpp"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

#include "accelerate/base/file_descriptor.hpp"
#include "accelerate/env/parse.hpp"
#include "accelerate/env/process_env.hpp"
#include "launch/launch.hpp"
#include "launch/pmix/private_folder.hpp"

namespace accelerate::launch {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWorkerVariable = "ACCELERATE_WORKER_OF";
constexpr std::string_view kWorkersOperation = "launch_workers";
constexpr int64_t kMaxWorkers = 4096;

template <typename... Args>
[[noreturn]] void fail_workers(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  base::fail(kind, {}, kWorkersOperation, format, std::forward<Args>(args)...);
}

// The call for which a rank was started, by its number within main(), and the folder for its results.
struct WorkerOf {
  int64_t call = 0;
  std::string folder{};
};

// Removed from the environment, because processes that a rank starts are not ranks.
std::optional<WorkerOf> read_worker_of() {
  const char* const text = std::getenv(kWorkerVariable);
  if (text == nullptr) return std::nullopt;
  const std::string value = text;
  ::unsetenv(kWorkerVariable);
  const auto colon = value.find(':');
  const auto call = env::parse_integer(value.substr(0, colon));
  if (!call || colon == std::string::npos) fail_workers(ErrorKind::environment, "{} is '{}'", kWorkerVariable, value);
  return WorkerOf{*call, value.substr(colon + 1)};
}

const std::optional<WorkerOf>& worker_of() {
  static const std::optional<WorkerOf> mine = read_worker_of();
  return mine;
}

// Number of calls in this process so far. It identifies a call in the program and in its ranks.
int64_t next_call() {
  static int64_t calls = 0;
  return ++calls;
}

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

fs::path done_file(const fs::path& folder, int64_t rank) { return folder / fmt::format("done_{}", rank); }

// Creates a file that only this user can read, regardless of the umask. Returns false if it exists or the write fails.
bool leave(const fs::path& path, std::string_view text) {
  const base::FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  while (file && !text.empty()) {
    const ssize_t count = ::write(file.get(), text.data(), text.size());
    if (count < 0 && errno != EINTR) return false;
    if (count > 0) text.remove_prefix(static_cast<size_t>(count));
  }
  return static_cast<bool>(file);
}

// Failure of a rank or the launcher, for the parent process.
struct WorkerFailure {
  ErrorKind kind = ErrorKind::peer;
  base::ErrorFields fields{};  ///< without a rank if the launcher failed
  std::string text{};
};

WorkerFailure failure_of(const Error& error) {
  return {.kind = error.kind(),
          .fields = {.host = error.host(), .operation = error.operation(), .missing_ranks = error.missing_ranks()},
          .text = error.what()};
}

// Writes one line each for kind, rank, host, operation and missing ranks, then the text. Only the first failed rank
// writes, because later failures may be consequences.
void write_failure_file(const fs::path& file, const WorkerFailure& failure) {
  const auto line = [](std::string text) {
    std::ranges::replace(text, '\n', ' ');
    return text;
  };
  const auto& fields = failure.fields;
  leave(file,
        fmt::format("{}\n{}\n{}\n{}\n{}\n{}", static_cast<int>(failure.kind), fields.rank.value_or(-1),
                    line(fields.host), line(fields.operation), fmt::join(fields.missing_ranks, " "), failure.text));
}

WorkerFailure read_failure(const std::string& note) {
  WorkerFailure failure;
  std::istringstream lines(note);
  const auto next = [&] {
    std::string line;
    std::getline(lines, line);
    return line;
  };
  failure.kind = static_cast<ErrorKind>(env::parse_integer(next()).value_or(0));
  if (const auto rank = env::parse_integer(next()).value_or(-1); rank >= 0) failure.fields.rank = rank;
  failure.fields.host = next();
  failure.fields.operation = next();
  std::istringstream missing(next());
  for (int64_t rank = 0; missing >> rank;) failure.fields.missing_ranks.push_back(rank);
  failure.text.assign(std::istreambuf_iterator<char>(lines), {});
  return failure;
}

constexpr std::string_view kStartPrefix = "start_";

// Marker of one restart attempt, written by the first rank that reaches the call. Without it, the result of the
// previous attempt would be attributed to an attempt that never reached the call.
fs::path start_file(const fs::path& folder, int64_t start) { return folder / fmt::format("{}{}", kStartPrefix, start); }

// For the ranks of one attempt. Failures of the launcher, which belong to no attempt, are in "failed".
fs::path failure_file(const fs::path& folder, int64_t start) { return folder / fmt::format("failed_{}", start); }

int64_t last_start(const fs::path& folder) {
  int64_t last = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kStartPrefix)) continue;
    last = std::max(last, env::parse_integer(name.substr(kStartPrefix.size())).value_or(0));
  }
  return last;
}

[[noreturn]] void run_rank(const std::function<void(const std::string&)>& rank_main, const fs::path& folder) {
  const auto here = env::read_process_env(env::current_variables());
  leave(start_file(folder, here.restart_count), "");
  WorkerFailure failure;
  try {
    rank_main(contents(folder / "argument"));
    leave(done_file(folder, here.rank), "done");
    std::exit(0);  // the rest of main() runs in the parent only
  } catch (const Error& error) {
    failure = failure_of(error);
  } catch (const std::exception& error) {
    failure.text = error.what();
  } catch (...) {
    failure.text = "an exception that is not a std::exception";
  }
  failure.fields.rank = here.rank;
  if (failure.fields.host.empty()) failure.fields.host = base::host_name();
  write_failure_file(failure_file(folder, here.restart_count), failure);
  std::exit(1);
}

std::vector<std::string> this_command() {
  std::error_code error;
  std::vector<std::string> command{fs::read_symlink("/proc/self/exe", error).string()};
  if (error) fail_workers(ErrorKind::environment, "/proc/self/exe cannot be read: {}", error.message());
  const std::string words = contents("/proc/self/cmdline");
  for (size_t at = words.find('\0'); at != std::string::npos && at + 1 < words.size(); at = words.find('\0', at + 1)) {
    command.emplace_back(words.c_str() + at + 1);
  }
  return command;
}

// Runs in the launcher: if the program was killed, no other process removes its folder.
[[noreturn]] void end_the_launcher(int code, const WorkerOf& worker, pid_t parent) {
  if (::getppid() != parent) remove_folder(worker.folder);
  ::_exit(code);
}

// Runs in a separate process: MPI can be served once per process, and the launcher blocks signals.
[[noreturn]] void run_as_launcher(const LaunchOptions& options, const WorkerOf& worker, pid_t parent) {
  // If SIGTERM is ignored, as by a batch script's trap, the end of the program would not be detected.
  ::signal(SIGTERM, SIG_DFL);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) end_the_launcher(1, worker, parent);
  ::setenv(kWorkerVariable, fmt::format("{}:{}", worker.call, worker.folder).c_str(), 1);
  const fs::path failure = fs::path(worker.folder) / "failed";
  try {
    const int code = launch(options);
    std::fflush(nullptr);
    end_the_launcher(code, worker, parent);
  } catch (const Error& error) {
    write_failure_file(failure, failure_of(error));
  } catch (const std::exception& error) {
    write_failure_file(failure, {.kind = ErrorKind::environment, .text = error.what()});
  }
  end_the_launcher(1, worker, parent);
}

// If the program or its parent ignores SIGCHLD, the system discards the exit status of children before it can be read.
class ChildrenAreKept {
 public:
  ChildrenAreKept() {
    ::sigaction(SIGCHLD, nullptr, &before_);
    if (before_.sa_handler != SIG_IGN && (before_.sa_flags & SA_NOCLDWAIT) == 0) return;
    struct sigaction kept = before_;
    if (kept.sa_handler == SIG_IGN) kept.sa_handler = SIG_DFL;
    kept.sa_flags &= ~SA_NOCLDWAIT;
    ::sigaction(SIGCHLD, &kept, nullptr);
  }
  ~ChildrenAreKept() { ::sigaction(SIGCHLD, &before_, nullptr); }
  ChildrenAreKept(const ChildrenAreKept&) = delete;
  ChildrenAreKept& operator=(const ChildrenAreKept&) = delete;

 private:
  struct sigaction before_ {};
};

int launch_and_wait(const LaunchOptions& options, const WorkerOf& worker) {
  std::fflush(nullptr);
  const ChildrenAreKept kept;
  const pid_t self = ::getpid();
  const pid_t launcher = ::fork();
  if (launcher < 0) fail_workers(ErrorKind::environment, "no process can be created: {}", std::strerror(errno));
  if (launcher == 0) run_as_launcher(options, worker, self);
  int status = 0;
  while (::waitpid(launcher, &status, 0) < 0) {
    if (errno != EINTR) fail_workers(ErrorKind::environment, "the launcher is lost: {}", std::strerror(errno));
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

[[noreturn]] void rethrow(const std::string& note, int64_t num_processes) {
  WorkerFailure failure = read_failure(note);
  auto& fields = failure.fields;
  if (fields.rank) fields.world_size = num_processes;
  if (fields.operation.empty()) fields.operation = kWorkersOperation;
  const auto rank_text = fields.rank ? fmt::format("rank {} of {}: ", *fields.rank, num_processes) : "";
  throw Error(failure.kind, fmt::format("{}: {}{}", kWorkersOperation, rank_text, failure.text), std::move(fields));
}

std::string code_in_words(int code) {
  return code > 128 ? fmt::format("{} (signal {}, {})", code, code - 128, ::strsignal(code - 128))
                    : std::to_string(code);
}

void check_end(int code, const fs::path& folder, int64_t num_processes) {
  if (code != 0) {
    const std::string launchers = contents(folder / "failed");
    // Files of earlier attempts remain, but later attempts supersede their failures.
    const std::string failure = launchers.empty() ? contents(failure_file(folder, last_start(folder))) : launchers;
    if (!failure.empty()) rethrow(failure, num_processes);
  }
  if (code != 0) {
    fail_workers(ErrorKind::peer,
                 "a rank ended with exit code {} without an error text; see the launcher's output on stderr",
                 code_in_words(code));
  }
  for (int64_t rank = 0; rank < num_processes; ++rank) {
    if (fs::exists(done_file(folder, rank))) continue;
    fail_workers(ErrorKind::usage,
                 "rank {} of {} ended without coming to this call; main() has to lead every rank to it, and rank_main "
                 "to return",
                 rank, num_processes);
  }
}

void throw_inside_rank() {
  const auto process = env::read_process_env(env::current_variables());
  if (!worker_of() && process.world_size == 1) return;
  fail_workers(ErrorKind::usage, "this process is rank {} of {} already; a rank cannot launch others", process.rank,
               process.world_size);
}

}  // namespace

void run_workers(const std::function<void(const std::string&)>& rank_main, int64_t num_processes,
                 const std::string& argument, LaunchOptions options) {
  const int64_t call = next_call();
  if (worker_of() && call < worker_of()->call) return;
  if (worker_of() && call == worker_of()->call) run_rank(rank_main, worker_of()->folder);
  throw_inside_rank();
  if (num_processes < 1 || num_processes > kMaxWorkers) {
    fail_workers(ErrorKind::usage, "num_processes is {}, must be from 1 to {}", num_processes, kMaxWorkers);
  }
  open_standard_streams();
  const PrivateFolder folder(place_for_temporary_files());
  if (!leave(fs::path(folder.path()) / "argument", argument)) {
    fail_workers(ErrorKind::environment, "the ranks' argument cannot be written into {}: {}", folder.path(),
                 std::strerror(errno));
  }
  options.num_processes = num_processes;
  options.num_machines = 1;
  options.machine_rank = 0;
  options.runner = "local";  // also inside a Slurm step or batch script
  options.main_process_port = 0;
  options.command = this_command();
  check_end(launch_and_wait(options, {call, folder.path()}), folder.path(), num_processes);
}

}  // namespace accelerate::launch
