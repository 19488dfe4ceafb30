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

#include "launch/plan/options.hpp"

namespace accelerate::launch {
namespace {

constexpr const char* prefix = "accelerate_launch.";

int open_folder(const std::string& path) { return open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC); }

/// Ours, and nobody holds its lock.
void remove_if_stale(const std::filesystem::path& path) {
  const int folder = open_folder(path);
  struct stat status {};
  std::error_code ignored;
  if (folder >= 0 && fstat(folder, &status) == 0 && status.st_uid == geteuid() &&
      flock(folder, LOCK_EX | LOCK_NB) == 0) {
    std::filesystem::remove_all(path, ignored);
  }
  if (folder >= 0) close(folder);
}

void sweep(const std::string& parent) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(parent, ignored)) {
    if (entry.path().filename().string().starts_with(prefix)) remove_if_stale(entry.path());
  }
}

}  // namespace

PrivateFolder::PrivateFolder(const std::string& parent) {
  sweep(parent);
  struct stat status {};
  do {  // between its making and its locking another launcher may sweep it
    if (lock_ >= 0) close(lock_);
    path_ = fmt::format("{}/{}XXXXXX", parent, prefix);
    if (mkdtemp(path_.data()) == nullptr) {
      throw LaunchError(
          1, fmt::format("accelerate_launch: no folder can be made in {}: {}", parent, std::strerror(errno)));
    }
    lock_ = open_folder(path_);
  } while (lock_ < 0 || flock(lock_, LOCK_EX) != 0 || fstat(lock_, &status) != 0 || status.st_nlink == 0);
}

PrivateFolder::~PrivateFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
  close(lock_);
}

}  // namespace accelerate::launch
