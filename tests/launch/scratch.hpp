// SPDX-License-Identifier: Apache-2.0
// A separate folder for a test's temporary files, so that other jobs on this machine do not interfere.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>

#include "accelerate/env/process_env.hpp"

namespace testing {

/// For tests with time limits: on a busy disk, creating, removing or inspecting a file can take seconds (2 s observed).
constexpr const char* in_memory = "/dev/shm";

struct Scratch {
  explicit Scratch(const std::string& parent = "/tmp") : path(parent + "/launch_test.XXXXXX") {
    if (mkdtemp(path.data()) == nullptr) throw std::runtime_error("no folder can be created in " + parent);
  }
  ~Scratch() {
    std::error_code error;  // a launcher of the test may concurrently remove its own folder
    std::filesystem::remove_all(path, error);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  [[nodiscard]] bool empty() const { return std::filesystem::is_empty(path); }
  [[nodiscard]] accelerate::env::Variables variables() const { return {{"TMPDIR", path}}; }
  std::string path;
};

}  // namespace testing
