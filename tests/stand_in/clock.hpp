// SPDX-License-Identifier: Apache-2.0
// A vector clock: the completed work of each stream.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace stand_in {

class Clock {
 public:
  /// Number of the last job of the stream that is known to be finished; jobs count from 1.
  [[nodiscard]] uint64_t of(int stream) const {
    const auto at = static_cast<size_t>(stream);
    return at < jobs_.size() ? jobs_[at] : 0;
  }
  void raise(int stream, uint64_t job) {
    const auto at = static_cast<size_t>(stream);
    if (jobs_.size() <= at) jobs_.resize(at + 1);
    jobs_[at] = std::max(jobs_[at], job);
  }
  void join(const Clock& other) {
    jobs_.resize(std::max(jobs_.size(), other.jobs_.size()));
    for (size_t i = 0; i < other.jobs_.size(); ++i) jobs_[i] = std::max(jobs_[i], other.jobs_[i]);
  }
  [[nodiscard]] const std::vector<uint64_t>& jobs() const { return jobs_; }

 private:
  std::vector<uint64_t> jobs_;
};

}  // namespace stand_in
