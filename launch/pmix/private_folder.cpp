// SPDX-License-Identifier: Apache-2.0
#include "launch/pmix/private_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "launch/plan/error.hpp"

namespace accelerate::launch {
namespace {

constexpr const char* prefix = "accelerate_launch.";

int open_folder(const std::string& path) { return open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC); }

/// Returns 0 or errno.
int lock(int folder, int how) {
  while (flock(folder, how) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

/// Ours, and nobody holds its lock.
void remove_if_stale(const std::filesystem::path& path) {
  const base::FileDescriptor folder(open_folder(path));
  struct stat status {};
  std::error_code ignored;
  if (folder && fstat(folder.get(), &status) == 0 && status.st_uid == geteuid() &&
      lock(folder.get(), LOCK_EX | LOCK_NB) == 0) {
    std::filesystem::remove_all(path, ignored);
  }
}

void sweep(const std::string& parent) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(parent, ignored)) {
    if (entry.path().filename().string().starts_with(prefix)) remove_if_stale(entry.path());
  }
}

[[noreturn]] void refuse(const std::string& parent, std::string_view named_by, int error) {
  if (named_by.empty()) fail(ErrorKind::io, "no folder can be made in {}: {}", parent, std::strerror(error));
  fail(ErrorKind::io, "{} is '{}', where no folder can be made: {}; set it to a folder that can be written", named_by,
       parent, std::strerror(error));
}

}  // namespace

bool PrivateFolder::make(const std::string& parent, std::string_view named_by) {
  path_ = fmt::format("{}/{}XXXXXX", parent, prefix);
  if (mkdtemp(path_.data()) == nullptr) refuse(parent, named_by, errno);
  lock_.reset(open_folder(path_));
  if (!lock_ && errno == ENOENT) return false;
  if (!lock_) {
    const int error = errno;
    rmdir(path_.c_str());
    refuse(parent, named_by, error);
  }
  lock(lock_.get(), LOCK_EX);  // without locks it is as good, but stays when we are killed
  struct stat status {};
  return fstat(lock_.get(), &status) == 0 && status.st_nlink > 0;
}

PrivateFolder::PrivateFolder(const std::string& parent, std::string_view named_by) {
  sweep(parent);
  while (!make(parent, named_by)) {
  }
}

PrivateFolder::~PrivateFolder() { remove(); }

void PrivateFolder::remove() const {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

PrivateFolder folder_for_temporary_files() {
  const char* given = std::getenv("TMPDIR");
  if (given != nullptr && *given != '\0') return PrivateFolder(given, "TMPDIR");
  return PrivateFolder(access("/tmp", W_OK | X_OK) == 0 ? "/tmp" : "/dev/shm");
}

PrivateFolder folder_for_shared_memory() {
  if (access("/dev/shm", W_OK | X_OK) == 0) return PrivateFolder("/dev/shm");
  return folder_for_temporary_files();
}

}  // namespace accelerate::launch
