// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace accelerate::base {

/// Formats a size as "1.5 GiB", "812 MiB" or "17 bytes".
[[nodiscard]] inline std::string bytes_text(int64_t bytes) {
  constexpr std::array<std::string_view, 4> units{"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} bytes", bytes);
  double amount = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (amount >= 1000 && unit + 1 < units.size()) {
    amount /= 1024;
    ++unit;
  }
  return amount < 9.95 ? fmt::format("{:.1f} {}", amount, units[unit]) : fmt::format("{:.0f} {}", amount, units[unit]);
}

}  // namespace accelerate::base
