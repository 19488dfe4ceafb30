// SPDX-License-Identifier: Apache-2.0
// Whether the ranks of all machines stand still: what each machine says of its own, put together.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "launch/run/stillness.hpp"

namespace accelerate::launch {

class HangJudge {
 public:
  /// parts   that together have all ranks of the job, numbered from 0
  /// limit   for which the ranks of a part that says so have not moved
  HangJudge(int64_t parts, std::chrono::milliseconds limit) : parts_(parts), limit_(limit) {}

  void hear(int64_t part, Stillness says);
  /// Its ranks have ended well.
  void take_leave_of(int64_t part) { hear(part, {.is_still = true}); }

  /// The cause (hang_report.hpp) when the ranks of all parts stand still, and one of them had begun something.
  [[nodiscard]] std::optional<std::string> verdict() const;

 private:
  int64_t parts_;
  std::chrono::milliseconds limit_;
  std::map<int64_t, Stillness> still_;
};

}  // namespace accelerate::launch
