// SPDX-License-Identifier: Apache-2.0
// Folders for tests, gone afterwards.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "accelerate/comm/group.hpp"

namespace testing {

/// As std::filesystem::remove_all, which LibTorch exports broken.
inline void remove_tree(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(std::filesystem::symlink_status(path, error))) {
    for (const auto& entry : std::filesystem::directory_iterator(path, error)) remove_tree(entry.path());
  }
  std::filesystem::remove(path, error);
}

/// A new folder that all ranks know; rank 0 makes and removes it. Collective.
struct SharedFolder {
  explicit SharedFolder(accelerate::comm::Group ranks = {}) : group(std::move(ranks)) {
    static int64_t made = 0;
    const std::string mine =
        std::string(TEST_BINARY_DIR) + "/tmp_shared_" + std::to_string(::getpid()) + "_" + std::to_string(made++);
    path = group.size() == 1 ? mine : group.broadcast_bytes(mine);
    if (group.rank() == 0) std::filesystem::create_directories(path);
    if (group.size() > 1) group.barrier();
  }
  ~SharedFolder() {
    if (group.size() > 1) group.barrier();
    if (group.rank() == 0) remove_tree(path);
  }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;

  accelerate::comm::Group group;
  std::filesystem::path path;
};

}  // namespace testing
