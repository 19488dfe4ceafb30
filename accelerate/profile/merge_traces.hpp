// SPDX-License-Identifier: Apache-2.0
// Chrome traces of all ranks as one.
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

/// One trace (chrome://tracing, ui.perfetto.dev) with the processes of each rank under its name, on one clock: that of
/// the machines, which LibTorch's traces name.
[[nodiscard]] MergedTrace merged_trace(const std::vector<RankTrace>& traces);

/// A trace as LibTorch writes it, with the quotes in names of ranges escaped: LibTorch leaves them as they are.
[[nodiscard]] std::string with_escaped_names(std::string_view trace);

}  // namespace accelerate::profile
