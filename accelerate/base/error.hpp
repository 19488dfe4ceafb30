// SPDX-License-Identifier: Apache-2.0
// The error type of the library and the function that formats errors.
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

/// Category of an error, by which a program can decide how to react.
enum class ErrorKind {
  usage,        ///< an invalid call: the program must be changed
  environment,  ///< launcher variables, installed components or settings contradict each other
  data,         ///< a file or message has invalid or unexpected content
  peer,         ///< another rank is lost, late, or runs a different operation
  device,       ///< a device is missing or failed
  io,           ///< a file or socket operation failed
};

std::string_view error_kind_name(ErrorKind kind);

/// Rank and machine of a message. An empty host means that they are unknown and are omitted from the text.
struct RankContext {
  int64_t rank = 0;
  int64_t world_size = 1;
  std::string host{};

  bool operator==(const RankContext&) const = default;
};

/// "[rank 3 of 8, gpu-b] ", or "" for an unknown place.
std::string prefix(const RankContext& place);

/// The facts of an Error as values, so that a program need not parse the text.
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
  /// \param operation      Name of the failed operation as the user knows it ("shard", "all_gather").
  /// \param message        The actual and the expected value, then the remedy.
  /// \param missing_ranks  See missing_ranks().
  Error(ErrorKind kind, const RankContext& place, std::string_view operation, std::string_view message,
        std::vector<int64_t> missing_ranks = {});
  /// Creates an error of another process from its complete text.
  Error(ErrorKind kind, const std::string& text, ErrorFields fields);

  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }
  /// Returns the rank that failed. Unset if the place of the error is not known; the text then has no "[rank ...]".
  [[nodiscard]] std::optional<int64_t> rank() const noexcept { return fields_->rank; }
  /// Returns the number of ranks of its job. Unset if the place of the error is not known.
  [[nodiscard]] std::optional<int64_t> world_size() const noexcept { return fields_->world_size; }
  /// Returns the machine of that rank. Empty if the place of the error is not known.
  [[nodiscard]] const std::string& host() const noexcept { return fields_->host; }
  /// Returns the name of the failed operation: "all_gather".
  [[nodiscard]] const std::string& operation() const noexcept { return fields_->operation; }
  /// Returns the ranks of the job that did not join the operation before its deadline, in ascending order. Empty if no
  /// rank is missing, or if the backend cannot determine the missing ranks.
  [[nodiscard]] const std::vector<int64_t>& missing_ranks() const noexcept { return fields_->missing_ranks; }

 private:
  ErrorKind kind_;
  std::shared_ptr<const ErrorFields> fields_;  // never null; copying an exception must not throw
};

/// Formats the message as fmt::format does and throws it as an Error.
template <typename... Args>
[[noreturn]] void fail(ErrorKind kind, const RankContext& place, std::string_view operation,
                       fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, place, operation, fmt::format(format, std::forward<Args>(args)...));
}

/// Returns the name of this machine, as used in errors.
std::string host_name();

}  // namespace accelerate::base

namespace accelerate {
using base::Error;
using base::ErrorKind;
using base::RankContext;
}  // namespace accelerate
