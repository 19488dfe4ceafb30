// SPDX-License-Identifier: Apache-2.0
// The one error type of the library and the one function that formats it.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace accelerate::base {

/// Who should act on an error, so that callers can react by kind.
enum class ErrorKind {
  usage,        ///< a wrong call: the program must change
  environment,  ///< launcher variables, installed parts or settings contradict one another
  data,         ///< what was read is not what it claims to be
  peer,         ///< another rank is lost, late or does something else
  device,       ///< a device is missing or failed
  io,           ///< a file or a socket
};

std::string_view name(ErrorKind kind);

/// Where a message comes from. An empty host means "not known": the place is then left out of the text.
struct Place {
  int64_t rank = 0;
  int64_t world_size = 1;
  std::string host{};

  bool operator==(const Place&) const = default;
};

/// "[rank 3 of 8, gpu-b] ", or "" for an unknown place.
std::string prefix(const Place& place);

/// Reads "[rank 3 of 8, gpu-b] shard: batch_size is 0, must be at least 1".
class Error : public std::runtime_error {
 public:
  /// operation   what was tried, a name the user knows ("shard", "all_gather")
  /// message     both values first, then what to do
  Error(ErrorKind kind, const Place& place, std::string_view operation, std::string_view message);

  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

/// Throws an Error whose message is formatted like fmt::format.
template <typename... Args>
[[noreturn]] void fail(ErrorKind kind, const Place& place, std::string_view operation,
                       fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, place, operation, fmt::format(format, std::forward<Args>(args)...));
}

/// The name of this machine as errors show it.
std::string host_name();

}  // namespace accelerate::base

namespace accelerate {
using base::Error;
using base::ErrorKind;
using base::Place;
}  // namespace accelerate
