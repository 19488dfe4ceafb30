// SPDX-License-Identifier: Apache-2.0
// One line of progress in the format of Python's tqdm.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace accelerate::tracking {

struct Meter {
  std::string description{};
  std::string unit = "it";
  int64_t done = 0;
  std::optional<int64_t> total{};
  double elapsed = 0.0;          ///< seconds
  std::optional<double> rate{};  ///< recent steps per second; if unset, the mean since the start
  std::string postfix{};         ///< further text: "loss=0.25"
  int64_t width = 80;            ///< columns
  bool utf8 = true;              ///< if true, the bar has eighths of a character, otherwise digits
};

/// Returns "epoch 1:  45%|████▌     | 45/100 [00:12<00:15,  3.67it/s, loss=0.25]", at most `width` columns.
[[nodiscard]] std::string meter_line(const Meter& meter);

/// Formats seconds as "02:05" or "1:02:05". Negative or too large values give "?".
[[nodiscard]] std::string interval_text(double seconds);

}  // namespace accelerate::tracking
