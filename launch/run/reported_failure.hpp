// SPDX-License-Identifier: Apache-2.0
// Finds the rank that failed first under srun. srun exits with the highest exit code of all tasks, including tasks that
// it stopped because another one failed. The per-rank wrapper reports each failure itself (failure_report.hpp), and
// srun forwards these reports in their order.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace accelerate::launch {

struct ReportedFailure {
  std::string cause{};  ///< "exit code 7"
  int exit_code = 1;    ///< exit code of the launcher that reported the failure

  bool operator==(const ReportedFailure&) const = default;
};

/// Parses one line. Returns nothing for other lines, and for a rank that ended because its end was requested. Pure
/// function.
std::optional<ReportedFailure> reported_failure(std::string_view line);

/// Finds the first reported failure in a stream.
class FirstReportedFailure {
 public:
  void add(std::string_view bytes);
  [[nodiscard]] const std::optional<ReportedFailure>& found() const noexcept { return found_; }

 private:
  std::string open_;  ///< unfinished line
  std::optional<ReportedFailure> found_;
};

}  // namespace accelerate::launch
