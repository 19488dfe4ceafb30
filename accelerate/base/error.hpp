// SPDX-License-Identifier: Apache-2.0
// The one error type of the library and the one function that formats it.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

/// What an Error is about, as values that a program can test.
struct ErrorFields {
  std::optional<int64_t> rank{};  ///< unset if the place of the error is not known
  std::optional<int64_t> world_size{};
  std::string host{};
  std::string operation{};
  std::vector<int64_t> missing_ranks{};
};

/// Reads "[rank 3 of 8, gpu-b] shard: batch_size is 0, must be at least 1".
///
/// An error of a rank keeps its fields in run_threads() and simulate(), which rethrow it, and in launch_workers(),
/// which throws another one in the parent process. Copies share the fields. Thread-safe.
class Error : public std::runtime_error {
 public:
  /// \param operation      What was tried, a name the user knows ("shard", "all_gather").
  /// \param message        Both values first, then what to do.
  /// \param missing_ranks  See missing_ranks().
  Error(ErrorKind kind, const Place& place, std::string_view operation, std::string_view message,
        std::vector<int64_t> missing_ranks = {});
  /// An error with the whole text given, for one that comes from another process.
  Error(ErrorKind kind, const std::string& text, ErrorFields fields);

  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }
  /// The rank that failed. Unset if the place of the error is not known; the text then has no "[rank ...]".
  [[nodiscard]] std::optional<int64_t> rank() const noexcept { return fields_->rank; }
  /// The number of ranks of its job. Unset if the place of the error is not known.
  [[nodiscard]] std::optional<int64_t> world_size() const noexcept { return fields_->world_size; }
  /// The machine of that rank. Empty if the place of the error is not known.
  [[nodiscard]] const std::string& host() const noexcept { return fields_->host; }
  /// What was tried: "all_gather".
  [[nodiscard]] const std::string& operation() const noexcept { return fields_->operation; }
  /// The ranks of the job that did not join the operation before its deadline, in ascending order. Empty if no rank is
  /// missing, or if the backend cannot tell which.
  [[nodiscard]] const std::vector<int64_t>& missing_ranks() const noexcept { return fields_->missing_ranks; }

 private:
  ErrorKind kind_;
  std::shared_ptr<const ErrorFields> fields_;  // never null; a copy of an exception must not throw
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
