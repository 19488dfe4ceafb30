// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <string>

#include "accelerate/base/file_descriptor.hpp"

namespace testing {

struct Pipe {
  accelerate::base::FileDescriptor read;
  accelerate::base::FileDescriptor write;
};

/// Reads do not block.
inline Pipe open_pipe() {
  std::array<int, 2> ends{};
  REQUIRE(pipe2(ends.data(), O_CLOEXEC) == 0);
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {accelerate::base::FileDescriptor(ends[0]), accelerate::base::FileDescriptor(ends[1])};
}

/// Returns all available bytes.
inline std::string read_all(int fd) {
  std::string text;
  std::array<char, 65536> buffer;
  for (ssize_t n = 0; (n = read(fd, buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), static_cast<size_t>(n));
  return text;
}

}  // namespace testing
