// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tests/launch/run.hpp"

namespace testing {

/// Runs a program of the build as a user does.
inline Ran run_program(const std::string& name, std::vector<std::string> arguments,
                       const accelerate::env::Variables& variables = {}) {
  arguments.insert(arguments.begin(), TEST_BINARY_DIR "/bin/" + name);
  return Child(arguments, variables).wait();
}

}  // namespace testing
