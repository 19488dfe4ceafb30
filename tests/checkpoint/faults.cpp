// SPDX-License-Identifier: Apache-2.0
// A save is killed, or its disk fails, at each of its system calls. Afterwards there is always a complete checkpoint,
// the old one or the new one, and after a successful return it is the new one.
//
// checkpoint_faults FOLDER [WHAT], by WHAT:
//   (none)      each call fails in turn; the order in which files reach the disk; two concurrent saves to one path
//   some        the same for every third call
//   full        on a small disk that fills up a little later each time: see small_disk.sh
//   read-only   on a disk that cannot be written, with a checkpoint from the cases above
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <thread>

#include "accelerate/archive/atomic_file.hpp"
#include "accelerate/archive/checkpoint_folder.hpp"
#include "accelerate/checkpoint/weights.hpp"
#include "accelerate/comm/group.hpp"
#include "tests/checkpoint/folder.hpp"
#include "tests/checkpoint/small_content.hpp"

namespace checkpoint = accelerate::checkpoint;
namespace fs = std::filesystem;

namespace {

enum class Fault { kill, no_space, io_error, short_writes };
int stride = 1;  // distance between the failing calls

// Countdown to the failing call of this process; inactive unless it is above 0.
std::atomic<int> calls_left{0};
Fault fault = Fault::kill;
// Network file systems cannot exchange two names, and a file that is removed while it is open stays under another name
// until it is closed (NFS, sshfs).
bool is_network = false;
std::set<std::string> hidden;
std::mutex hidden_mutex;
std::atomic<bool> is_slow_after_its_part{false};  // on the second rank, after the first has found its part

// Time of the last flush of files and folders, by inode; later writes remove the entry. After a power failure a
// checkpoint contains the files that were flushed before its rename.
std::map<ino_t, int> brought;
std::mutex brought_mutex;
bool is_watched = false, in_order = true;
ino_t renamed_in = 0;  // a folder with a changed name that is not flushed yet

ino_t inode_of(int file) {
  struct stat found {};
  return ::fstat(file, &found) == 0 ? found.st_ino : 0;
}
ino_t inode_of(const fs::path& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0 ? found.st_ino : 0;
}

void was_written(int file) {
  const std::lock_guard lock(brought_mutex);
  brought.erase(inode_of(file));
}
void was_brought(int file) {
  const std::lock_guard lock(brought_mutex);
  static int clock = 0;
  brought[inode_of(file)] = ++clock;
  if (inode_of(file) == renamed_in) renamed_in = 0;
}
/// Checks that all files of a folder, and then the folder, were flushed.
void takes_target_name(const fs::path& made) {
  if (!is_watched) return;
  const std::lock_guard lock(brought_mutex);
  std::error_code error;
  const auto of_folder = brought.find(inode_of(made));
  for (const auto& entry : fs::directory_iterator(made, error)) {
    if (entry.path().filename() == accelerate::archive::kLockName) continue;
    const auto of_file = brought.find(inode_of(entry.path()));
    const bool right = of_folder != brought.end() && of_file != brought.end() && of_file->second < of_folder->second;
    if (!right) std::fprintf(stderr, "%s is not on the disk when its folder takes its name\n", entry.path().c_str());
    in_order = in_order && right;
  }
  renamed_in = inode_of(made.parent_path());
}
bool is_in_making(const char* path) {
  return fs::path(path).filename().string().find(".saving-") != std::string::npos && fs::is_directory(path);
}

/// Returns true, with errno set, if the next call must fail.
bool fails_as_expected(bool is_write) {
  if (calls_left <= 0 || --calls_left > 0) return false;
  if (fault == Fault::kill) ::raise(SIGKILL);
  if (fault == Fault::no_space && is_write) errno = ENOSPC;
  if (fault == Fault::no_space && !is_write) return false;
  if (fault == Fault::io_error) errno = EIO;
  return true;
}

/// True if this process has the file open.
bool is_open(const fs::path& path) {
  std::error_code error;
  for (const auto& file : fs::directory_iterator("/proc/self/fd", error)) {
    if (fs::read_symlink(file.path(), error) == path) return true;
  }
  return false;
}

}  // namespace

// Replace libc's functions for code that this program links statically.
extern "C" {
ssize_t write(int file, const void* bytes, size_t size) {
  if (calls_left > 0 && fault == Fault::short_writes)
    return ::syscall(SYS_write, file, bytes, size > 1 ? size / 2 : size);
  if (fails_as_expected(/*is_write=*/true)) return -1;
  was_written(file);
  return ::syscall(SYS_write, file, bytes, size);
}
int fsync(int file) {
  if (fails_as_expected(false)) return -1;
  was_brought(file);
  return static_cast<int>(::syscall(SYS_fsync, file));
}
int rename(const char* from, const char* to) noexcept {
  if (is_in_making(from)) takes_target_name(from);
  if (fails_as_expected(false)) return -1;
  const auto status = static_cast<int>(::syscall(SYS_rename, from, to));
  if (is_slow_after_its_part && std::string_view(to).ends_with("/.part_1")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  return status;
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  if (is_network && flags != 0) {
    errno = EINVAL;
    return -1;
  }
  if (is_in_making(from)) takes_target_name(from);
  return fails_as_expected(false) ? -1
                                  : static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}
int remove(const char* path) noexcept {
  if (fault == Fault::kill) fails_as_expected(false);
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

struct AttemptResult {
  bool killed = false, failed = false;
  bool reached = false;  // the failing call was made
};

/// Saves 2 over the existing checkpoint in a separate process.
AttemptResult save_with(Fault which, int call, const fs::path& place, bool beside, std::optional<int64_t> limit = {}) {
  const pid_t child = ::fork();
  if (child == 0) {
    fault = which;
    int code = 0;
    try {
      checkpoint::CheckpointWriter saver({});
      calls_left = call;
      saver.save(testing::small_content(2), {.place = place, .options = {.async = beside}, .total_limit = limit});
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
  for (; call < 1000; call += stride) {
    const AttemptResult outcome = save_with(which, call, place, beside);
    accelerate::archive::recover(place);  // as load_state() does
    expect(!accelerate::archive::find_damage(place, true), "no complete checkpoint found", which, call);
    const double value = value_in(place);
    expect(value == 1 || value == 2, "the checkpoint is neither the old nor the new one", which, call);
    if (!outcome.killed && !outcome.failed)
      expect(value == 2, "the checkpoint of a completed save is missing", which, call);
    // A failed save cleans up after itself; the next save removes the remains of a killed one. The same holds for the
    // old checkpoint of a save that failed at its very end: the new one exists but might not survive a power failure.
    if (outcome.killed || (outcome.failed && value == 2)) testing::save(place, testing::small_content(1));
    expect(entries_in(folder) == 1, "the save left other files", which, call);
    if (value == 2) testing::save(place, testing::small_content(1));
    if (!outcome.reached || which == Fault::short_writes) break;
  }
  const bool is_enough = which == Fault::short_writes || call > first + (first == 1 ? 20 : 0);
  expect(is_enough, "the calls are not intercepted", which, call);
  std::printf("fault %d%s: %d calls\n", static_cast<int>(which), beside ? ", beside the training" : "", call - 1);
}

/// Saves the third of numbered checkpoints, with a limit of one. At any time the newest complete one is the second or
/// the third. A later save without a limit leaves only complete checkpoints, and one with the limit leaves only one.
void try_every_call_with_a_limit(Fault which, const fs::path& folder, bool beside) {
  const fs::path numbered = folder / "numbered";
  int call = 1;
  for (; call < 1000; call += stride) {
    accelerate::base::remove_tree(numbered);
    testing::save(numbered / "checkpoint_0", testing::small_content(0));
    testing::save(numbered / "checkpoint_1", testing::small_content(1));
    const AttemptResult outcome = save_with(which, call, numbered / "checkpoint_2", beside, 1);
    const auto newest = accelerate::archive::newest_complete_checkpoint(numbered, "load_state", true);
    const double value = value_in(newest.folder);
    expect(value == 1 || value == 2, "the newest whole one is another", which, call);
    expect(newest.skipped_checkpoints.empty(), "a torn one is seen", which, call);
    if (!outcome.killed && !outcome.failed)
      expect(value == 2, "the checkpoint of a completed save is missing", which, call);
    save_with(Fault::kill, 0, numbered / "checkpoint_3", false);  // without a limit, no incomplete folder remains
    expect(entries_in(numbered) == std::ssize(accelerate::archive::numbered_checkpoints(numbered)),
           "a leftover is left", which, call);
    save_with(Fault::kill, 0, numbered / "checkpoint_3", false, 1);
    expect(entries_in(numbered) == 1, "something is left", which, call);
    if (!outcome.reached) break;
  }
  expect(call > 20, "the calls are not intercepted", which, call);
  std::printf("fault %d, with a limit%s: %d calls\n", static_cast<int>(which), beside ? ", beside the training" : "",
              call - 1);
  accelerate::base::remove_tree(numbered);
}

/// Checks the order of the flushes, without failures.
void try_the_order(const fs::path& folder, bool replaces, bool beside) {
  const fs::path place = folder / "ordered" / "checkpoint_0";
  if (replaces) testing::save(place, testing::small_content(1));
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {
    brought.clear();
    is_watched = true;
    checkpoint::CheckpointWriter saver({});
    saver.save(testing::small_content(2),
               {.place = place, .options = {.async = beside}, .hook = [](const fs::path& making) {
                  const int file = ::open((making / "notes.txt").c_str(), O_WRONLY | O_CREAT, 0666);
                  if (::write(file, "by a hook", 9) != 9) in_order = false;
                  ::close(file);
                }});
    saver.wait();
    ::_exit(in_order && renamed_in == 0 && !brought.empty() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "data is not on the disk when it must be", Fault::kill, 0);
  expect(!accelerate::archive::find_damage(place, true), "a checkpoint that was saved without a fault is damaged",
         Fault::kill, 0);
  accelerate::base::remove_tree(folder / "ordered");
}

bool is_brought(const fs::path& path) { return brought.contains(inode_of(path)); }

/// A folder with new parents is lost with them unless they have been flushed.
void new_folders_too(const fs::path& folder) {
  const fs::path made = folder / "new", deeper = made / "deeper";
  const auto check = [&](const char* what) {
    expect(is_brought(folder) && is_brought(made) && is_brought(deeper), what, Fault::kill, 0);
    accelerate::base::remove_tree(made);
    brought.clear();
  };
  brought.clear();
  checkpoint::CheckpointWriter({}).save(testing::small_content(1), {.place = deeper / "checkpoint_0"});
  check("a folder above a checkpoint is not on the disk");
  checkpoint::save_file(deeper / "weights.safetensors", testing::small_content(1).masters, "save");
  check("a folder above a file is not on the disk");
  checkpoint::save_weights(deeper / "model", testing::small_content(1).masters, {}, "save_model");
  check("a folder above weights is not on the disk");
  testing::save(deeper / "checkpoint_0", testing::small_content(1));
  expect(brought.empty(), "what need not be durable is brought to the disk", Fault::kill, 0);
  accelerate::base::remove_tree(made);
  brought.clear();
}

/// Tests file systems that cannot rename without replacing.
void keep_existing(const fs::path& folder) {
  using accelerate::archive::Existing, accelerate::archive::AtomicFile;
  const auto write = [&](const char* text) {
    AtomicFile file(folder / "file", "save");
    file.sink().write(text);
    file.commit(Existing::keep);
  };
  write("first");
  bool refused = false;
  try {
    write("second");
  } catch (const accelerate::Error& error) {
    refused =
        std::string(error.what()).ends_with("cannot be renamed to " + (folder / "file").string() + ": File exists");
  }
  expect(refused, "a file was replaced that was to be kept", Fault::kill, 0);
  expect(fs::file_size(folder / "file") == 5, "it is not the first one", Fault::kill, 0);
  fs::remove(folder / "file");
}

/// The leader renames the folder as soon as all parts exist.
void a_rank_is_slow_after_its_part(const fs::path& folder) {
  const fs::path place = folder / "checkpoint_0";
  is_slow_after_its_part = true;
  std::atomic<int> saved = 0;
  accelerate::comm::run_threads(
      2,
      [&](const accelerate::comm::Group& group) {
        checkpoint::CheckpointWriter saver(group);
        saver.save(testing::small_content(2), {.place = place, .options = {.async = true}});
        try {
          saver.wait();
          ++saved;
        } catch (const accelerate::Error& error) {
          std::printf("rank %d: %s\n", static_cast<int>(group.rank()), error.what());
        }
      },
      std::chrono::seconds(60));
  is_slow_after_its_part = false;
  expect(saved == 2, "a rank failed although its part was written", Fault::kill, 0);
  expect(!accelerate::archive::find_damage(place, true), "the checkpoint of two ranks is damaged", Fault::kill, 0);
  accelerate::base::remove_tree(place);
}

/// A process that saves repeatedly; the only accepted error is that another process is saving.
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
  expect(!accelerate::archive::find_damage(place, true), "two that save to one place tore it", Fault::kill, 0);
  accelerate::base::remove_tree(place);
  expect(entries_in(folder) == 0, "two that save to one place left something", Fault::kill, 0);
}

/// Increases the free space of the disk until a save succeeds.
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
        expect(failed, "a full disk is not the reported error", Fault::no_space, static_cast<int>(room));
      }
      refused += failed ? 1 : 0;
      expect(!accelerate::archive::find_damage(place, true), "no complete checkpoint found", Fault::no_space,
             static_cast<int>(room));
      expect(value_in(place) == (failed ? 1 : 2), "the wrong checkpoint was found", Fault::no_space,
             static_cast<int>(room));
      expect(entries_in(folder) == 2, "the save left other files", Fault::no_space, static_cast<int>(room));
      if (failed) continue;
      std::printf("full disk: refused %d times, saved with %d KB\n", refused, static_cast<int>(room / 1024));
      expect(refused > 4, "the disk was not full", Fault::no_space, 0);
      return;
    }
  }
}

void save_where_nothing_can(const fs::path& folder) {
  std::string message;
  try {
    testing::save(folder / "checkpoint_0", testing::small_content(3));
  } catch (const accelerate::Error& error) {
    message = error.what();
  }
  const bool right = message.ends_with(folder.string() + " cannot contain a new folder: Read-only file system");
  if (!right) std::printf("%s\n", message.c_str());
  expect(right, "a read-only disk is not the reported error", Fault::io_error, 0);
  expect(!accelerate::archive::find_damage(folder / "checkpoint_0", true), "it cannot be read there", Fault::io_error,
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
    if (what == "some") stride = 3;
    accelerate::base::remove_tree(folder);
    fs::create_directories(folder);
    for (const Fault which : {Fault::kill, Fault::no_space, Fault::io_error, Fault::short_writes}) {
      for (const bool beside : {false, true}) try_every_call(which, folder, beside);
    }
    for (const bool beside : {false, true}) {
      for (const bool replaces : {false, true}) try_the_order(folder, replaces, beside);
    }
    accelerate::base::remove_tree(folder / "checkpoint_0");
    for (const Fault which : {Fault::kill, Fault::io_error}) {
      for (const bool beside : {false, true}) try_every_call_with_a_limit(which, folder, beside);
    }
    is_network = true;
    keep_existing(folder);
    new_folders_too(folder);
    try_every_call(Fault::kill, folder, /*beside=*/false, /*first=*/30);  // renames are at the end
    for (const bool beside : {false, true}) try_every_call(Fault::io_error, folder, beside);
    is_network = false;
    accelerate::base::remove_tree(folder / "checkpoint_0");
    two_save_to_one_place(folder);
    for (const bool network : {false, true}) {
      is_network = network;  // where open files that are removed remain under another name
      a_rank_is_slow_after_its_part(folder);
      is_network = false;
      accelerate::base::remove_tree(folder);
      fs::create_directories(folder);
    }
    accelerate::base::remove_tree(folder);
  }
  return failures == 0 ? 0 : 1;
}
