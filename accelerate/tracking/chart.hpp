// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "accelerate/tracking/run_log.hpp"

namespace accelerate::tracking {

/// Escapes text for HTML and XML: <, >, &, quotes, and characters that XML does not allow.
[[nodiscard]] std::string html_text(std::string_view text);

/// Formats a number as "0.25", "1.3e-05" or "12 400"; if the name ends in _bytes, as "1.5 GiB".
[[nodiscard]] std::string number_text(double number, std::string_view name = "");

/// Reduces the points to at most `most`, and keeps the minimum and maximum of each interval.
[[nodiscard]] std::vector<Point> thinned(const std::vector<Point>& points, size_t most);

/// Returns a line chart over the steps as SVG, with round axis numbers and the last value at the end of the line.
[[nodiscard]] std::string chart_svg(const Series& series);
/// Returns a chart with several lines in different colours, and a legend above them.
[[nodiscard]] std::string chart_svg(const std::string& name, const std::vector<Series>& lines);

/// Returns two to seven round numbers from about low to about high.
[[nodiscard]] std::vector<double> round_ticks(double low, double high);

}  // namespace accelerate::tracking
