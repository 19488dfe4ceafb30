// SPDX-License-Identifier: Apache-2.0
#include "launch/pmix/private_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include "accelerate/base/remove_tree.hpp"
#include "launch/plan/error.hpp"

namespace accelerate::launch {
namespace {

constexpr const char* kFolderPrefix = "accelerate_launch.";

int open_folder(const std::string& path) { return open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC); }

/// Returns 0 or errno.
int lock(int folder, int how) {
  while (flock(folder, how) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

/// Removes the folder if it belongs to this user and no process holds its lock.
void remove_if_abandoned(const std::filesystem::path& path) {
  const base::FileDescriptor folder(open_folder(path));
  struct stat status {};
  if (folder && fstat(folder.get(), &status) == 0 && status.st_uid == geteuid() &&
      lock(folder.get(), LOCK_EX | LOCK_NB) == 0) {
    base::remove_tree(path);
  }
}

void sweep(const std::string& parent) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(parent, ignored)) {
    if (entry.path().filename().string().starts_with(kFolderPrefix)) remove_if_abandoned(entry.path());
  }
}

[[noreturn]] void refuse(const FolderPlace& place, int error) {
  if (place.named_by.empty()) {
    fail(ErrorKind::io, "no folder can be created in {}: {}", place.parent, std::strerror(error));
  }
  fail(ErrorKind::io, "{} is '{}', where no folder can be created: {}; set it to a folder that can be written",
       place.named_by, place.parent, std::strerror(error));
}

}  // namespace

std::string FolderPlace::random_name() {
  std::random_device random;
  return fmt::format("{}{:08x}{:08x}", kFolderPrefix, random(), random());
}

bool PrivateFolder::make(const FolderPlace& place) {
  if (mkdir(path_.c_str(), 0700) != 0) refuse(place, errno);
  lock_.reset(open_folder(path_));
  if (!lock_ && errno == ENOENT) return false;
  if (!lock_) {
    const int error = errno;
    rmdir(path_.c_str());
    refuse(place, error);
  }
  lock(lock_.get(), LOCK_EX);  // without locks the folder works, but remains if this process is killed
  struct stat status {};
  return fstat(lock_.get(), &status) == 0 && status.st_nlink > 0;
}

PrivateFolder::PrivateFolder(const FolderPlace& place) : path_(place.path()) {
  sweep(place.parent);
  while (!make(place)) {
  }
}

PrivateFolder::~PrivateFolder() { remove_folder(path_); }

void remove_folder(const std::string& path) {
  std::error_code failed;
  // Retries, because a concurrent removal (by libpmix's thread, if ranks die) makes this one fail.
  for (int i = 0; i < 20; ++i) {
    base::remove_tree(path);
    if (!std::filesystem::exists(path, failed)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

FolderPlace place_for_temporary_files() {
  const char* given = std::getenv("TMPDIR");
  if (given != nullptr && *given != '\0') return {.parent = given, .named_by = "TMPDIR"};
  return {.parent = access("/tmp", W_OK | X_OK) == 0 ? "/tmp" : "/dev/shm"};
}

FolderPlace place_for_shared_memory() {
  if (access("/dev/shm", W_OK | X_OK) == 0) return {.parent = "/dev/shm"};
  return place_for_temporary_files();
}

}  // namespace accelerate::launch
