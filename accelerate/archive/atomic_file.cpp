// SPDX-License-Identifier: Apache-2.0
#include "accelerate/archive/atomic_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "accelerate/archive/checkpoint_folder.hpp"
#include "accelerate/archive/lock_support.hpp"

namespace accelerate::archive {
namespace {

// Locks a file for the writing process. A file without a lock was left by a process that is gone.
base::FileDescriptor held(const std::filesystem::path& path) {
  base::FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));  // network file systems lock only writable files
  if (file && ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) file.reset();
  return file;
}

// Returns false with errno. Network file systems cannot exclude a replacement, but writers of this library exclude one
// another.
bool put(const std::filesystem::path& made, const std::filesystem::path& place, Existing existing) {
  if (existing == Existing::keep) {
    if (::renameat2(AT_FDCWD, made.c_str(), AT_FDCWD, place.c_str(), RENAME_NOREPLACE) == 0) return true;
    if (errno != EINVAL && errno != ENOSYS) return false;
    std::error_code error;
    if (std::filesystem::exists(std::filesystem::symlink_status(place, error))) {
      errno = EEXIST;
      return false;
    }
  }
  return ::rename(made.c_str(), place.c_str()) == 0;
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path place, std::string_view operation)
    : place_(std::move(place)), path_(place_.string() + ".saving"), operation_(operation) {
  std::error_code error;
  if (std::filesystem::exists(std::filesystem::symlink_status(path_, error))) {
    if (!held(path_) && !locks_unsupported(errno)) {
      base::fail(ErrorKind::usage, {}, operation_, "{} is being written by another process ({} is incomplete)",
                 place_.string(), path_.string());
    }
    std::filesystem::remove(path_, error);
  }
  sink_.emplace(path_, operation_);
  lock_ = held(path_);
}

AtomicFile::~AtomicFile() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

void AtomicFile::commit(Existing existing) {
  sink_->finish();
  if (!put(path_, place_, existing)) {
    base::fail(ErrorKind::io, {}, operation_, "{} cannot be renamed to {}: {}", path_.string(), place_.string(),
               std::strerror(errno));
  }
  path_.clear();
  sync_to_disk(place_.has_parent_path() ? place_.parent_path() : std::filesystem::path("."), operation_);
}

}  // namespace accelerate::archive
