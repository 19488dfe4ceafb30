// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tracking/chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "accelerate/base/bytes_text.hpp"
#include "accelerate/tracking/text.hpp"

namespace accelerate::tracking {
namespace {

constexpr double kWidth = 520, kHeight = 220, kLeft = 64, kRight = 24, kTop = 10, kBottom = 26;
constexpr size_t kColours = 6;  // CSS classes line0, line1, ... of the page

/// Maps values to coordinates.
struct Scale {
  double low, high, from, to;

  [[nodiscard]] double operator()(double number) const {
    return high > low ? from + (number - low) / (high - low) * (to - from) : (from + to) / 2;
  }
};

struct Bounds {
  double low, high;
};

template <typename Member>
Bounds bounds_of(const std::vector<Point>& points, Member member) {
  const auto less = [&](const Point& a, const Point& b) { return a.*member < b.*member; };
  const auto [low, high] = std::minmax_element(points.begin(), points.end(), less);
  return {*low.*member, *high.*member};
}

std::string grid(const Scale& x, const Scale& y, std::string_view name) {
  std::string svg;
  for (const double tick : round_ticks(y.low, y.high)) {
    svg += fmt::format(R"(<line x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}" class="grid"/>)", x.from, x.to, y(tick),
                       y(tick));
    svg += fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>)", x.from - 6, y(tick) + 4,
                       html_text(number_text(tick, name)));
  }
  for (const double tick : round_ticks(x.low, x.high)) {
    svg += fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>)", x(tick), kHeight - 8,
                       html_text(number_text(tick)));
  }
  return svg;
}

/// \param label  Drawn in the curve's colour above all curves; may be empty.
std::string curve(const std::vector<Point>& points, const Scale& x, const Scale& y, size_t number,
                  const std::string& label) {
  if (points.empty()) return "";
  std::string line;
  for (const auto& point : points) line += fmt::format("{:.1f},{:.1f} ", x(point.step), y(point.value));
  line.pop_back();
  std::string svg = fmt::format(R"(<g class="line{}"><polyline points="{}"/>)", number % kColours, line);
  svg += fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="3"/>)", x(points.back().step), y(points.back().value));
  if (!label.empty()) {
    svg += fmt::format(R"(<text x="{:.1f}" y="{}">{}</text>)", kLeft + 60 * static_cast<double>(number), kTop + 8,
                       html_text(label));
  }
  return svg + "</g>";
}

}  // namespace

std::string html_text(std::string_view text) {
  std::string escaped;
  for (const char c : valid_utf8(text)) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '<') {
      escaped += "&lt;";
    } else if (c == '>') {
      escaped += "&gt;";
    } else if (c == '&') {
      escaped += "&amp;";
    } else if (c == '"') {
      escaped += "&quot;";
    } else if (c == '\'') {
      escaped += "&#39;";
    } else {
      escaped += code < 0x20 && c != '\n' && c != '\t' ? ' ' : c;
    }
  }
  return escaped;
}

std::string number_text(double number, std::string_view name) {
  if (name.ends_with("_bytes") && number >= 0 && number < 1e18) return base::bytes_text(static_cast<int64_t>(number));
  return fmt::format("{:.5g}", number == 0 ? 0.0 : number);  // avoids -0
}

std::vector<double> round_ticks(double low, double high) {
  if (!(high > low)) return {low};
  const double rough = (high - low) / 4;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  if (!(power > 0) || !std::isfinite(rough)) return {low, high};
  const double mantissa = rough / power;
  const double step = power * (mantissa < 1.5 ? 1 : mantissa < 3.5 ? 2 : mantissa < 7.5 ? 5 : 10);
  const double first = std::ceil(low / step), last = std::floor(high / step);
  std::vector<double> ticks;
  for (double count = first; count <= last && ticks.size() < 7; ++count) ticks.push_back(count * step);
  if (ticks.size() < 2) return {low, high};
  return ticks;
}

std::vector<Point> thinned(const std::vector<Point>& points, size_t most) {
  if (points.size() <= most) return points;
  const size_t stretches = std::max<size_t>(most / 2, 1);
  std::vector<Point> few;
  for (size_t i = 0; i < stretches; ++i) {
    const auto begin = points.begin() + static_cast<std::ptrdiff_t>(points.size() * i / stretches);
    const auto end = points.begin() + static_cast<std::ptrdiff_t>(points.size() * (i + 1) / stretches);
    auto [low, high] =
        std::minmax_element(begin, end, [](const Point& a, const Point& b) { return a.value < b.value; });
    if (high < low) std::swap(low, high);
    few.push_back(*low);
    if (high != low) few.push_back(*high);
  }
  return few;
}

std::string chart_svg(const Series& series) { return chart_svg(series.name, {series}); }

std::string chart_svg(const std::string& name, const std::vector<Series>& lines) {
  std::vector<std::vector<Point>> drawn;
  std::vector<Point> all;
  for (const auto& line : lines) {
    drawn.push_back(thinned(line.points, 1000));
    all.insert(all.end(), drawn.back().begin(), drawn.back().end());
  }
  std::string svg =
      fmt::format(R"(<svg viewBox="0 0 {} {}" role="img" aria-label="{}">)", kWidth, kHeight, html_text(name));
  if (all.empty()) {
    return svg + fmt::format(R"(<text x="{}" y="{}">no finite value</text></svg>)", kLeft, kHeight / 2);
  }
  const auto steps = bounds_of(all, &Point::step), values = bounds_of(all, &Point::value);
  const Scale x{steps.low, steps.high, kLeft, kWidth - kRight};
  const Scale y{values.low, values.high, kHeight - kBottom, kTop};
  svg += grid(x, y, name);
  for (size_t i = 0; i < lines.size(); ++i) svg += curve(drawn[i], x, y, i, lines.size() > 1 ? lines[i].name : "");
  return svg + "</svg>";
}

}  // namespace accelerate::tracking
