// SPDX-License-Identifier: Apache-2.0
#include "accelerate/base/error.hpp"

#include <unistd.h>

#include <array>

#include "accelerate/base/error_file.hpp"

namespace accelerate::base {

std::string_view name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage:
      return "usage";
    case ErrorKind::environment:
      return "environment";
    case ErrorKind::data:
      return "data";
    case ErrorKind::peer:
      return "peer";
    case ErrorKind::device:
      return "device";
    case ErrorKind::io:
      return "io";
  }
  return "unknown";
}

std::string prefix(const Place& place) {
  if (place.host.empty()) return "";
  return fmt::format("[rank {} of {}, {}] ", place.rank, place.world_size, place.host);
}

Error::Error(ErrorKind kind, const Place& place, std::string_view operation, std::string_view message)
    : std::runtime_error(fmt::format("{}{}: {}", prefix(place), operation, message)), kind_(kind) {
  note_error(what());
}

std::string host_name() {
  std::array<char, 256> buffer{};
  if (gethostname(buffer.data(), buffer.size() - 1) != 0) return "localhost";
  return buffer.data();
}

}  // namespace accelerate::base
