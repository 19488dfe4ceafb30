// SPDX-License-Identifier: Apache-2.0
#include "launch/run/failure_pipe.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <string_view>

#include "accelerate/env/parse.hpp"

namespace accelerate::launch {

void write_failure_notice(const Failure& failure, bool was_signalled, int fd) {
  if (fd < 0) return;
  const std::string cause =
      failure.did_not_join ? failure.cause : fmt::format("worker {}, {}", failure.rank, failure.cause);
  // At most PIPE_BUF bytes, so that the write is atomic.
  const std::string line =
      fmt::format("{} {} {}", failure.exit_code, was_signalled ? "signalled" : "failed", cause).substr(0, 500);
  [[maybe_unused]] const auto written = write(fd, (line + "\n").data(), line.size() + 1);
}

std::optional<FailureNotice> read_failure_notice(int fd) {
  std::array<char, 512> bytes;
  const ssize_t count = fd < 0 ? -1 : read(fd, bytes.data(), bytes.size());
  if (count <= 0) return std::nullopt;
  const std::string_view all(bytes.data(), static_cast<size_t>(count));
  const auto line = all.substr(0, all.find('\n'));
  const auto space = std::min(line.find(' '), line.size());
  const auto second = std::min(line.find(' ', std::min(space + 1, line.size())), line.size());
  const auto code = env::parse_integer(line.substr(0, space));
  if (!code || *code < 1 || *code > 255) return std::nullopt;
  return FailureNotice{.exit_code = static_cast<int>(*code),
                       .was_signalled = line.substr(space, second - space) == " signalled",
                       .text = std::string(line.substr(std::min(second + 1, line.size())))};
}

}  // namespace accelerate::launch
