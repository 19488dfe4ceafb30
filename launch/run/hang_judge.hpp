// SPDX-License-Identifier: Apache-2.0
// Whether the ranks of all machines stand still: what each machine says of its own, put together.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/run/stillness.hpp"

namespace accelerate::launch {

/// A part says that its ranks stand still once they have for half the limit, and that they move again as soon as it has
/// seen it. The other half passes here before a verdict, so that what a part has not yet seen to move has time to be
/// told of: a rank that waited for another machine's goes on when that comes, and its machine has looked a moment ago.
class HangJudge {
 public:
  using Clock = std::chrono::steady_clock;

  /// parts   that together have all ranks of the job, numbered from 0
  /// limit   for which no rank may stand still while all do; 0: for ever
  HangJudge(int64_t parts, std::chrono::milliseconds limit) : parts_(parts), limit_(limit) {}

  void hear(int64_t part, Stillness says, Clock::time_point now);
  /// Its ranks have ended well, with which the job has moved.
  void take_leave_of(int64_t part, Clock::time_point now);

  /// When there is a verdict unless something moves before.
  [[nodiscard]] std::optional<Clock::time_point> deadline() const;
  /// The cause (hang_report.hpp) when the ranks of all parts stand still for the limit, and one of them had begun
  /// something.
  [[nodiscard]] std::optional<std::string> verdict(Clock::time_point now) const;

 private:
  struct Part {
    Clock::time_point moved;  // last, as far as it is known
    std::vector<StillRank> ranks;
  };

  int64_t parts_;
  std::chrono::milliseconds limit_;
  std::map<int64_t, Part> still_;
};

}  // namespace accelerate::launch
