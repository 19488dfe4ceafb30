// SPDX-License-Identifier: Apache-2.0
// Chrome traces of all ranks as one.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace accelerate::profile {

/// One rank's trace as LibTorch writes it.
struct RankTrace {
  int64_t rank = 0;
  std::string json{};
};

/// One trace (chrome://tracing, ui.perfetto.dev) with the processes of each rank under its name, on one clock: that of
/// the machines, which LibTorch's traces name.
/// Throws Error (data) for a text that is no trace, naming its rank.
[[nodiscard]] std::string merged_trace(const std::vector<RankTrace>& traces);

}  // namespace accelerate::profile
