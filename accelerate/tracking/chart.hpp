// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "accelerate/tracking/run_log.hpp"

namespace accelerate::tracking {

/// Text in HTML and XML: <, >, &, quotes, and what XML has no character for.
[[nodiscard]] std::string html_text(std::string_view text);

/// "0.25", "1.3e-05", "12 400"; for names that end in _bytes "1.5 GiB".
[[nodiscard]] std::string number_text(double number, std::string_view name = "");

/// As many points at most, the lowest and the highest of each stretch among them.
[[nodiscard]] std::vector<Point> thinned(const std::vector<Point>& points, size_t most);

/// A line over the steps, as SVG: axes with round numbers, the last value at its end.
[[nodiscard]] std::string chart_svg(const Series& series);
/// Several, in colours of their own, named in a row above them.
[[nodiscard]] std::string chart_svg(const std::string& name, const std::vector<Series>& lines);

/// Round numbers from about low to about high, two to seven of them.
[[nodiscard]] std::vector<double> round_ticks(double low, double high);

}  // namespace accelerate::tracking
