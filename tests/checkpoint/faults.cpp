// SPDX-License-Identifier: Apache-2.0
// A save that is killed, or whose disk fails, at every single call of the system that it makes: whatever happens, there
// is a whole checkpoint afterwards, the old one or the new one, and a save that returned is the new one.
//
//   checkpoint_faults FOLDER
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "accelerate/archive/folder.hpp"
#include "tests/checkpoint/folder.hpp"
#include "tests/checkpoint/small_content.hpp"

namespace checkpoint = accelerate::checkpoint;
namespace fs = std::filesystem;

namespace {

enum class Fault { kill, no_space, io_error, short_writes };

// Of this process: the call that goes wrong, counted down; none while it is not above 0.
std::atomic<int> calls_left{0};
Fault fault = Fault::kill;

/// Whether the call that is about to be made fails, with errno set.
bool goes_wrong(bool is_write) {
  if (calls_left <= 0 || --calls_left > 0) return false;
  if (fault == Fault::kill) ::raise(SIGKILL);
  if (fault == Fault::no_space && is_write) errno = ENOSPC;
  if (fault == Fault::no_space && !is_write) return false;
  if (fault == Fault::io_error) errno = EIO;
  return true;
}

}  // namespace

// In the place of libc's: what this program links statically calls these.
extern "C" {
ssize_t write(int file, const void* bytes, size_t size) {
  if (calls_left > 0 && fault == Fault::short_writes)
    return ::syscall(SYS_write, file, bytes, size > 1 ? size / 2 : size);
  if (goes_wrong(/*is_write=*/true)) return -1;
  return ::syscall(SYS_write, file, bytes, size);
}
int fsync(int file) { return goes_wrong(false) ? -1 : static_cast<int>(::syscall(SYS_fsync, file)); }
int rename(const char* from, const char* to) noexcept {
  return goes_wrong(false) ? -1 : static_cast<int>(::syscall(SYS_rename, from, to));
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  return goes_wrong(false) ? -1 : static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}
}

namespace {

int failures = 0;

void expect(bool holds, const char* what, Fault which, int call) {
  if (holds) return;
  ++failures;
  std::printf("fault %d at call %d: %s\n", static_cast<int>(which), call, what);
}

struct Outcome {
  bool killed = false, failed = false;
  bool reached = false;  // the call that goes wrong was made
};

/// Saves 2 over what is there, in a process of its own.
Outcome save_with(Fault which, int call, const fs::path& place, bool beside) {
  const pid_t child = ::fork();
  if (child == 0) {
    fault = which;
    int code = 0;
    try {
      checkpoint::Saver saver({});
      calls_left = call;
      saver.save(testing::small_content(2), {.place = place, .options = {.async = beside}});
      saver.wait();
    } catch (const accelerate::Error&) {
      code = 1;
    }
    const bool reached = calls_left <= 0 || which == Fault::short_writes;
    ::_exit(code + (reached ? 2 : 0));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return {.killed = true, .reached = true};
  return {.failed = (WEXITSTATUS(status) & 1) != 0, .reached = (WEXITSTATUS(status) & 2) != 0};
}

double value_in(const fs::path& place) { return testing::load(place).models[0][0].second.mean().item<double>(); }

int64_t entries_in(const fs::path& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

void try_every_call(Fault which, const fs::path& folder, bool beside) {
  const fs::path place = folder / "checkpoint_0";
  accelerate::base::remove_tree(place);
  testing::save(place, testing::small_content(1));
  int call = 1;
  for (; call < 1000; ++call) {
    const Outcome outcome = save_with(which, call, place, beside);
    expect(!checkpoint::verify(place), "there is no whole checkpoint", which, call);
    const double value = value_in(place);
    expect(value == 1 || value == 2, "it is neither the old nor the new one", which, call);
    if (!outcome.killed && !outcome.failed) expect(value == 2, "a save that returned is not there", which, call);
    // Whoever fails cleans up; what a killed one left, the next save takes away. So it does with the old one of a save
    // that failed at the very end: the new one is there, and may not survive a loss of power.
    if (outcome.killed || (outcome.failed && value == 2)) testing::save(place, testing::small_content(1));
    expect(entries_in(folder) == 1, "something is left beside it", which, call);
    if (value == 2) testing::save(place, testing::small_content(1));
    if (!outcome.reached || which == Fault::short_writes) break;
  }
  std::printf("fault %d%s: %d calls\n", static_cast<int>(which), beside ? ", beside the training" : "", call - 1);
}

}  // namespace

int main(int, char** argv) {
  const fs::path folder = argv[1];
  accelerate::base::remove_tree(folder);
  fs::create_directories(folder);
  at::set_num_threads(1);  // processes are forked
  for (const Fault which : {Fault::kill, Fault::no_space, Fault::io_error, Fault::short_writes}) {
    for (const bool beside : {false, true}) try_every_call(which, folder, beside);
  }
  accelerate::base::remove_tree(folder);
  return failures == 0 ? 0 : 1;
}
