// SPDX-License-Identifier: Apache-2.0
// A folder of a test's own where temporary files go, so that other jobs on this machine do not disturb.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "accelerate/env/process_env.hpp"

namespace testing {

struct Scratch {
  Scratch() {
    char name[] = "/tmp/launch_test.XXXXXX";
    path = mkdtemp(name);
  }
  ~Scratch() {
    std::error_code error;  // a launcher of the test may remove its own beside this
    std::filesystem::remove_all(path, error);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  [[nodiscard]] bool empty() const { return std::filesystem::is_empty(path); }
  [[nodiscard]] accelerate::env::Variables variables() const { return {{"TMPDIR", path}}; }
  std::string path;
};

}  // namespace testing
