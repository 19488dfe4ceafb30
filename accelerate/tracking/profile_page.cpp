// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "accelerate/base/bytes_text.hpp"
#include "accelerate/tracking/chart.hpp"
#include "accelerate/tracking/run_profile.hpp"

namespace accelerate::tracking {
namespace {

constexpr size_t kOperators = 15;

double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0.0; }

std::string cell(const std::string& text) { return "<td class=\"number\">" + text + "</td>"; }
std::string cell(double number, std::string_view unit) { return cell(fmt::format("{:.1f}{}", number, unit)); }

std::string bytes_cell(int64_t bytes) { return cell(bytes > 0 ? base::bytes_text(bytes) : "-"); }

std::string heads(std::initializer_list<std::string_view> names) {
  std::string row = "<tr>";
  for (const auto name : names) row += fmt::format("<th{}>{}</th>", row == "<tr>" ? "" : " class=\"number\"", name);
  return row + "</tr>\n";
}

/// Bar with the shares of a step's time: waiting for data, communication that does not overlap with computation, the
/// rest.
std::string shares_bar(const RankProfile& rank) {
  const double whole = rank.length_ms();
  const double data = std::clamp(percent(rank.data_wait_ms, whole), 0.0, 100.0);
  const double bare = std::clamp(percent(rank.communication_ms - rank.overlapped_ms, whole), 0.0, 100.0 - data);
  return fmt::format(
      R"(<div class="bar"><span class="data" style="width:{:.1f}%"></span><span class="wire" style="width:{:.1f}%"></span></div>)",
      data, bare);
}

std::string rank_row(const RankProfile& rank) {
  const double whole = rank.length_ms();
  const auto steps = static_cast<double>(rank.step_ms.size());
  const double slowest = rank.step_ms.empty() ? 0.0 : *std::max_element(rank.step_ms.begin(), rank.step_ms.end());
  std::string row = fmt::format("<tr><th>rank {}, {}</th>", rank.rank, html_text(rank.host));
  row += cell(fmt::format("{}", rank.step_ms.size()));
  row += cell(fmt::format("{:.2f}", steps > 0 ? whole / steps : 0.0)) + cell(fmt::format("{:.2f}", slowest));
  row += cell(percent(rank.data_wait_ms, whole), " %") + cell(percent(rank.communication_ms, whole), " %");
  row += cell(percent(rank.overlapped_ms, rank.communication_ms), " %");
  row += rank.device_busy_ms > 0 ? cell(percent(rank.device_busy_ms, whole), " %") : cell("-");
  const double rate = whole > 0 ? rank.gflop / (whole * 1e-3) : 0.0;
  row += cell(rank.gflop > 0 ? fmt::format("{:.1f}", rate) : "-");
  row +=
      cell(rank.gflop > 0 && rank.peak_gflop_per_s > 0 ? fmt::format("{:.1f} %", percent(rate, rank.peak_gflop_per_s))
                                                       : "-");
  row += bytes_cell(rank.peak_resident_bytes) + bytes_cell(rank.peak_allocated_bytes);
  return row + "<td>" + shares_bar(rank) + "</td></tr>\n";
}

std::string ranks_table(const std::vector<RankProfile>& ranks) {
  std::string table =
      "<div class=\"wide\"><table>\n" +
      heads({"rank", "steps", "mean ms", "slowest ms", "waiting for data", "communication", "of it hidden",
             "device busy", "GFLOP/s", "MFU", "peak memory", "on its device", "share of a step"});
  for (const auto& rank : ranks) table += rank_row(rank);
  return table +
         "</table></div>\n<p class=\"note\">Bars: <span class=\"data key\"></span> waiting for data, <span "
         "class=\"wire "
         "key\"></span> communication that no operator hid, the rest is computing and the program itself.</p>\n";
}

std::string step_times(const std::vector<RankProfile>& ranks) {
  std::vector<Series> lines;
  for (const auto& rank : ranks) {
    Series line{.name = fmt::format("rank {}", rank.rank)};
    for (size_t i = 0; i < rank.step_ms.size(); ++i) line.points.push_back({static_cast<double>(i), rank.step_ms[i]});
    lines.push_back(std::move(line));
  }
  return "<div class=\"charts\"><div><h3>ms per step, by rank</h3>" + chart_svg("ms per step, by rank", lines) +
         "</div></div>\n";
}

std::string operators_table(const std::vector<RankProfile>& ranks) {
  const auto all = operators_of(ranks);
  if (all.empty()) return "";
  double whole = 0.0;
  for (const auto& one : all) whole += one.self_ms;
  std::string table = "<div class=\"wide\"><table>\n" + heads({"operator, of all ranks", "calls", "self ms", "self",
                                                               "total ms", "us a call", "device ms", "GFLOP"});
  for (size_t i = 0; i < std::min(all.size(), kOperators); ++i) {
    const auto& one = all[i];
    const double calls = static_cast<double>(std::max<int64_t>(one.calls, 1));
    table += fmt::format("<tr><th>{}</th>", html_text(one.name)) + cell(fmt::format("{}", one.calls));
    table += cell(fmt::format("{:.3f}", one.self_ms)) + cell(percent(one.self_ms, whole), " %");
    table += cell(fmt::format("{:.3f}", one.total_ms)) + cell(fmt::format("{:.1f}", 1e3 * one.total_ms / calls));
    table += cell(one.device_ms > 0 ? fmt::format("{:.3f}", one.device_ms) : "-");
    table += cell(one.gflop > 0 ? fmt::format("{:.3f}", one.gflop) : "-") + "</tr>\n";
  }
  return table + "</table></div>\n";
}

}  // namespace

std::string profile_html(const std::vector<RankProfile>& ranks, const std::string& title) {
  return fmt::format("<h2>{}</h2>\n<p>{}</p>\n", html_text(title), data_verdict(ranks)) + ranks_table(ranks) +
         step_times(ranks) + operators_table(ranks);
}

}  // namespace accelerate::tracking
