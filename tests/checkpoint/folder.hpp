// SPDX-License-Identifier: Apache-2.0
// Temporary folders for tests.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "accelerate/base/remove_tree.hpp"
#include "accelerate/comm/group.hpp"
#include "tests/build_folder.hpp"

namespace testing {

/// A new folder with the same path on all ranks; rank 0 creates and removes it. Collective.
struct SharedFolder {
  explicit SharedFolder(accelerate::comm::Group ranks = {}) : group(std::move(ranks)) {
    static int64_t made = 0;
    const std::string mine =
        build_folder() + "/tmp_shared_" + std::to_string(::getpid()) + "_" + std::to_string(made++);
    path = group.size() == 1 ? mine : group.broadcast_bytes(mine);
    if (group.rank() == 0) std::filesystem::create_directories(path);
    if (group.size() > 1) group.barrier();
  }
  ~SharedFolder() {
    if (group.size() > 1) group.barrier();
    if (group.rank() == 0) accelerate::base::remove_tree(path);
  }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;

  accelerate::comm::Group group;
  std::filesystem::path path;
};

}  // namespace testing
