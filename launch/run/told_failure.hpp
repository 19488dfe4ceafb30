// SPDX-License-Identifier: Apache-2.0
// Which rank failed first, where srun started them: it ends with the highest code of all its tasks, also of those that
// it stopped because another failed. The launcher around each rank says who failed by itself (failure_report.hpp), and
// what they say comes through srun in their order.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace accelerate::launch {

struct ToldFailure {
  std::string cause{};  ///< "exit code 7"
  int exit_code = 1;    ///< of the launcher that told

  bool operator==(const ToldFailure&) const = default;
};

/// The failure that a line tells; nothing for another line, also for one of a rank that ended because it was told to.
/// Pure.
std::optional<ToldFailure> told_failure(std::string_view line);

/// Looks for the first of them in a stream.
class FirstToldFailure {
 public:
  void add(std::string_view bytes);
  [[nodiscard]] const std::optional<ToldFailure>& found() const noexcept { return found_; }

 private:
  std::string open_;  ///< the beginning of a line
  std::optional<ToldFailure> found_;
};

}  // namespace accelerate::launch
