// SPDX-License-Identifier: Apache-2.0
#include "accelerate/base/error.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "accelerate/base/error_file.hpp"

namespace accelerate::base {

std::string_view error_kind_name(ErrorKind kind) {
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

std::string prefix(const RankContext& place) {
  if (place.host.empty()) return "";
  return fmt::format("[rank {} of {}, {}] ", place.rank, place.world_size, place.host);
}

namespace {

ErrorFields fields_of(const RankContext& place, std::string_view operation, std::vector<int64_t> missing_ranks) {
  std::ranges::sort(missing_ranks);
  ErrorFields fields{.operation = std::string(operation), .missing_ranks = std::move(missing_ranks)};
  if (place.host.empty()) return fields;
  fields.rank = place.rank;
  fields.world_size = place.world_size;
  fields.host = place.host;
  return fields;
}

}  // namespace

Error::Error(ErrorKind kind, const RankContext& place, std::string_view operation, std::string_view message,
             std::vector<int64_t> missing_ranks)
    : Error(kind, fmt::format("{}{}: {}", prefix(place), operation, message),
            fields_of(place, operation, std::move(missing_ranks))) {}

Error::Error(ErrorKind kind, const std::string& text, ErrorFields fields)
    : std::runtime_error(text), kind_(kind), fields_(std::make_shared<const ErrorFields>(std::move(fields))) {
  remember_error(what());
}

std::string host_name() {
  std::array<char, 256> buffer{};
  if (gethostname(buffer.data(), buffer.size() - 1) != 0) return "localhost";
  return buffer.data();
}

}  // namespace accelerate::base
