// SPDX-License-Identifier: Apache-2.0
// Merges the Chrome traces of all ranks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::profile {

/// One rank's trace as LibTorch writes it.
struct RankTrace {
  int64_t rank = 0;
  std::string json{};
};

struct MergedTrace {
  std::string json{};
  /// Ranks whose text is not a trace (an object with traceEvents).
  std::vector<int64_t> left_out{};
};

/// Returns one trace (chrome://tracing, ui.perfetto.dev) with the processes of all ranks, labelled by rank. All times
/// are on one clock: the machines' clocks, to which LibTorch's traces refer.
[[nodiscard]] MergedTrace merged_trace(const std::vector<RankTrace>& traces);

/// Escapes the quotes in range names of a LibTorch trace, because LibTorch does not escape them.
[[nodiscard]] std::string with_escaped_names(std::string_view trace);

}  // namespace accelerate::profile
