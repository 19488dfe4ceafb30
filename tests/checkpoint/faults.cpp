// SPDX-License-Identifier: Apache-2.0
// A save that is killed, or whose disk fails, at every single call of the system that it makes: whatever happens, there
// is a whole checkpoint afterwards, the old one or the new one, and a save that returned is the new one.
//
//   checkpoint_faults FOLDER              calls of the system that go wrong, and two that save to one place
//   checkpoint_faults FOLDER full         on a small disk that gets full, a little later each time; see small_disk.sh
//   checkpoint_faults FOLDER read-only    where that left a checkpoint
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>

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
// Network file systems cannot exchange two names, and a file that is removed while it is open stays under another name
// until it is closed (NFS, sshfs).
bool is_network = false;
std::set<std::string> hidden;
std::mutex hidden_mutex;

/// Whether the call that is about to be made fails, with errno set.
bool goes_wrong(bool is_write) {
  if (calls_left <= 0 || --calls_left > 0) return false;
  if (fault == Fault::kill) ::raise(SIGKILL);
  if (fault == Fault::no_space && is_write) errno = ENOSPC;
  if (fault == Fault::no_space && !is_write) return false;
  if (fault == Fault::io_error) errno = EIO;
  return true;
}

/// By this process.
bool is_open(const fs::path& path) {
  std::error_code error;
  for (const auto& file : fs::directory_iterator("/proc/self/fd", error)) {
    if (fs::read_symlink(file.path(), error) == path) return true;
  }
  return false;
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
  if (is_network && flags != 0) {
    errno = EINVAL;
    return -1;
  }
  return goes_wrong(false) ? -1 : static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}
int remove(const char* path) noexcept {
  if (is_network && is_open(path)) {
    static int made = 0;
    const std::lock_guard lock(hidden_mutex);
    const fs::path other = fs::path(path).parent_path() / (".hidden" + std::to_string(++made));
    hidden.insert(other);
    return static_cast<int>(::syscall(SYS_rename, path, other.c_str()));
  }
  const auto taken = ::syscall(SYS_unlinkat, AT_FDCWD, path, 0);
  return static_cast<int>(taken != 0 && errno == EISDIR ? ::syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR)
                                                        : taken);
}
int unlink(const char* path) noexcept { return ::remove(path); }
int close(int file) {
  const int closed = static_cast<int>(::syscall(SYS_close, file));
  if (!is_network) return closed;
  const std::lock_guard lock(hidden_mutex);
  std::erase_if(hidden, [](const std::string& path) {
    return !is_open(path) && ::syscall(SYS_unlinkat, AT_FDCWD, path.c_str(), 0) == 0;
  });
  return closed;
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

void try_every_call(Fault which, const fs::path& folder, bool beside, int first = 1) {
  const fs::path place = folder / "checkpoint_0";
  accelerate::base::remove_tree(place);
  testing::save(place, testing::small_content(1));
  int call = first;
  for (; call < 1000; ++call) {
    const Outcome outcome = save_with(which, call, place, beside);
    accelerate::archive::recover(place);  // as load_state() does
    expect(!accelerate::archive::what_is_wrong(place, true), "there is no whole checkpoint", which, call);
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

/// A process that saves as often as it can; all that it may be told is that another one is saving.
pid_t save_again_and_again(const fs::path& place, double value) {
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child != 0) return child;
  int code = 0;
  for (int i = 0; i < 40; ++i) {
    try {
      testing::save(place, testing::small_content(value));
    } catch (const accelerate::Error& error) {
      if (error.kind() == accelerate::ErrorKind::usage) continue;
      std::printf("of two that save: %s\n", error.what());
      code = 1;
    }
  }
  std::fflush(stdout);
  ::_exit(code);
}

void two_save_to_one_place(const fs::path& folder) {
  const fs::path place = folder / "shared";
  testing::save(place, testing::small_content(1));
  const pid_t first = save_again_and_again(place, 1), second = save_again_and_again(place, 2);
  for (const pid_t child : {first, second}) {
    int status = 0;
    ::waitpid(child, &status, 0);
    expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "one of two that save to one place failed", Fault::kill, 0);
  }
  expect(!accelerate::archive::what_is_wrong(place, true), "two that save to one place tore it", Fault::kill, 0);
  accelerate::base::remove_tree(place);
  expect(entries_in(folder) == 0, "two that save to one place left something", Fault::kill, 0);
}

/// The disk has room for so much more each time, until a save goes through.
void fill_the_disk(const fs::path& folder) {
  const fs::path place = folder / "checkpoint_0", ballast = folder / "ballast";
  testing::save(place, testing::small_content(1));
  int refused = 0;
  for (int64_t room = 0;; room += 4096) {
    fs::remove(ballast);
    const auto free = static_cast<int64_t>(fs::space(folder).available);
    std::FILE* const file = std::fopen(ballast.c_str(), "w");
    for (int64_t left = free - room; left > 0; left -= 4096) std::fputs(std::string(4096, 'x').c_str(), file);
    std::fclose(file);
    for (const bool beside : {false, true}) {
      bool failed = false;
      try {
        testing::save(place, testing::small_content(2), {.async = beside});
      } catch (const accelerate::Error& error) {
        failed = std::string(error.what()).find("No space left on device") != std::string::npos;
        if (!failed) std::printf("%s\n", error.what());
        expect(failed, "a full disk is not what it says", Fault::no_space, static_cast<int>(room));
      }
      refused += failed ? 1 : 0;
      expect(!accelerate::archive::what_is_wrong(place, true), "there is no whole checkpoint", Fault::no_space,
             static_cast<int>(room));
      expect(value_in(place) == (failed ? 1 : 2), "it is not the right one", Fault::no_space, static_cast<int>(room));
      expect(entries_in(folder) == 2, "something is left beside it", Fault::no_space, static_cast<int>(room));
      if (failed) continue;
      std::printf("full disk: refused %d times, saved with %d KB\n", refused, static_cast<int>(room / 1024));
      expect(refused > 4, "the disk was not full", Fault::no_space, 0);
      return;
    }
  }
}

void save_where_nothing_can(const fs::path& folder) {
  std::string told;
  try {
    testing::save(folder / "checkpoint_0", testing::small_content(3));
  } catch (const accelerate::Error& error) {
    told = error.what();
  }
  const bool right = told.ends_with(folder.string() + " takes no new folder: Read-only file system");
  if (!right) std::printf("%s\n", told.c_str());
  expect(right, "a disk that takes nothing is not what it says", Fault::io_error, 0);
  expect(!accelerate::archive::what_is_wrong(folder / "checkpoint_0", true), "it cannot be read there", Fault::io_error,
         0);
  expect(value_in(folder / "checkpoint_0") == 2, "it is not the one that was saved", Fault::io_error, 0);
}

}  // namespace

int main(int argc, char** argv) {
  const fs::path folder = argv[1];
  const std::string what = argc > 2 ? argv[2] : "";
  at::set_num_threads(1);  // processes are forked
  if (what == "full") {
    fill_the_disk(folder);
  } else if (what == "read-only") {
    save_where_nothing_can(folder);
  } else {
    accelerate::base::remove_tree(folder);
    fs::create_directories(folder);
    for (const Fault which : {Fault::kill, Fault::no_space, Fault::io_error, Fault::short_writes}) {
      for (const bool beside : {false, true}) try_every_call(which, folder, beside);
    }
    is_network = true;
    try_every_call(Fault::kill, folder, /*beside=*/false, /*first=*/100);  // names change at the end
    for (const bool beside : {false, true}) try_every_call(Fault::io_error, folder, beside);
    is_network = false;
    accelerate::base::remove_tree(folder / "checkpoint_0");
    two_save_to_one_place(folder);
    accelerate::base::remove_tree(folder);
  }
  return failures == 0 ? 0 : 1;
}
