// SPDX-License-Identifier: Apache-2.0
#include "accelerate/profile/spans.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace accelerate::profile {
namespace {

/// Time intervals in ascending order, without overlap if joined() returned them.
using Intervals = std::vector<std::pair<int64_t, int64_t>>;

Intervals joined(Intervals intervals) {
  std::sort(intervals.begin(), intervals.end());
  Intervals apart;
  for (const auto& [begin, end] : intervals) {
    if (!apart.empty() && begin <= apart.back().second) {
      apart.back().second = std::max(apart.back().second, end);
    } else {
      apart.emplace_back(begin, end);
    }
  }
  return apart;
}

int64_t length_of(const Intervals& apart) {
  int64_t sum = 0;
  for (const auto& [begin, end] : apart) sum += end - begin;
  return sum;
}

Intervals common(const Intervals& one, const Intervals& other) {
  Intervals both;
  for (size_t i = 0, j = 0; i < one.size() && j < other.size();) {
    const int64_t begin = std::max(one[i].first, other[j].first), end = std::min(one[i].second, other[j].second);
    if (begin < end) both.emplace_back(begin, end);
    one[i].second < other[j].second ? ++i : ++j;
  }
  return both;
}

bool is_step(const Span& span) { return span.name.starts_with(kStepSpan); }

/// Device time of the work that each operator launched, by operator number.
using DeviceTimes = std::unordered_map<uint64_t, int64_t>;

/// Adds the time of each span to its operator, and subtracts it from the self time of the enclosing operator.
std::vector<OperatorTime> times_by_operator(std::vector<const Span*> spans, const DeviceTimes& on_device) {
  std::sort(spans.begin(), spans.end(), [](const Span* a, const Span* b) {
    return std::tuple(a->thread, a->begin, -a->end) < std::tuple(b->thread, b->begin, -b->end);
  });
  std::map<std::string, OperatorTime> by_name;
  std::vector<const Span*> around;
  for (const Span* span : spans) {
    while (!around.empty() && (around.back()->thread != span->thread || around.back()->end <= span->begin)) {
      around.pop_back();
    }
    const int64_t length = span->end - span->begin;
    if (!around.empty()) by_name[around.back()->name].self_ns -= length;
    auto& row = by_name[span->name];
    row.name = span->name;
    row.calls += 1;
    row.self_ns += length;
    row.flops += span->flops;
    if (const auto started = on_device.find(span->number); started != on_device.end()) row.device_ns += started->second;
    const bool within_itself =
        std::any_of(around.begin(), around.end(), [&](const Span* outer) { return outer->name == span->name; });
    if (!within_itself) row.total_ns += length;
    around.push_back(span);
  }
  std::vector<OperatorTime> rows;
  for (auto& [name, row] : by_name) rows.push_back(std::move(row));
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return std::pair(a.device_ns, a.self_ns) > std::pair(b.device_ns, b.self_ns);
  });
  return rows;
}

std::string share_text(int64_t part, int64_t whole) {
  const double share = whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0.0;
  return fmt::format("{:.1f} %", share);
}

double milliseconds(int64_t ns) { return static_cast<double>(ns) * 1e-6; }

/// Returns the lengths in order of start time.
std::vector<int64_t> lengths_in_order(Intervals steps) {
  std::sort(steps.begin(), steps.end());
  std::vector<int64_t> lengths;
  for (const auto& [begin, end] : steps) lengths.push_back(end - begin);
  return lengths;
}

std::string busy_text(const TraceSummary& summary) {
  if (summary.device_busy_ns == 0) return "";
  return fmt::format(", device busy {}", share_text(summary.device_busy_ns, summary.length_ns));
}

std::string rates_text(const TraceSummary& summary) {
  if (summary.flops == 0 || summary.length_ns <= 0) return "";
  const auto rate = fmt::format(", {:.2f} GFLOP/s", summary.flops_per_s() * 1e-9);
  const auto mfu = summary.mfu();
  return mfu ? rate + fmt::format(", MFU {:.1f} %", 100 * *mfu) : rate;
}

}  // namespace

double TraceSummary::flops_per_s() const {
  return length_ns > 0 ? static_cast<double>(flops) / (static_cast<double>(length_ns) * 1e-9) : 0.0;
}

std::optional<double> TraceSummary::mfu() const {
  if (flops == 0 || length_ns <= 0 || !(peak_flops_per_s > 0)) return std::nullopt;
  return flops_per_s() / peak_flops_per_s;
}

uint64_t flops_of_convolution_backward(std::span<const int64_t> grad_output, std::span<const int64_t> weight) {
  if (grad_output.size() < 3 || weight.size() != grad_output.size()) return 0;
  uint64_t products = 1;
  for (const int64_t length : grad_output) products *= static_cast<uint64_t>(length);
  for (const int64_t length : weight.subspan(1)) products *= static_cast<uint64_t>(length);
  return 4 * products;  // one product and one sum each, for two gradients
}

bool is_communication(const std::string& name) {
  constexpr std::array<std::string_view, 5> titles{"c10d::", "gloo:", "comm:", "nccl:", "record_param_comms"};
  return std::any_of(titles.begin(), titles.end(), [&](std::string_view title) { return name.starts_with(title); });
}

bool is_communication_kernel(const std::string& name) { return name.starts_with("nccl"); }

TraceSummary summarize(const std::vector<Span>& spans) {
  TraceSummary summary;
  Intervals steps, waits, collectives, computing, collective_kernels, kernels, busy;
  DeviceTimes on_device;
  std::vector<const Span*> operators;
  for (const Span& span : spans) {
    const std::pair interval(span.begin, span.end);
    if (span.on_device) {
      busy.push_back(interval);
      summary.device_ns += span.end - span.begin;
      if (span.number != 0) on_device[span.number] += span.end - span.begin;
      if (!span.is_copy) (is_communication_kernel(span.name) ? collective_kernels : kernels).push_back(interval);
      continue;
    }
    if (is_step(span)) {
      steps.push_back(interval);
    } else if (is_communication(span.name)) {
      collectives.push_back(interval);
    } else if (span.name == kDataSpan) {
      waits.push_back(interval);
    } else if (span.name.starts_with("aten::")) {
      computing.push_back(interval);
    }
    if (!is_step(span) && !span.is_async) operators.push_back(&span);
  }
  summary.steps = static_cast<int64_t>(steps.size());
  summary.step_ns = lengths_in_order(steps);
  const auto within_steps = joined(steps);
  summary.length_ns = length_of(within_steps);
  summary.device_busy_ns = length_of(common(within_steps, joined(busy)));
  summary.data_wait_ns = length_of(joined(waits));
  // The host only launches the device's collectives, so its spans do not measure their duration.
  const auto apart = joined(collective_kernels.empty() ? collectives : collective_kernels);
  summary.communication_ns = length_of(apart);
  summary.overlapped_ns = length_of(common(apart, joined(kernels.empty() ? computing : kernels)));
  summary.operators = times_by_operator(std::move(operators), on_device);
  for (const auto& row : summary.operators) summary.flops += row.flops;
  return summary;
}

std::string summary_table(const TraceSummary& summary, int64_t rows) {
  const int64_t whole = summary.length_ns;
  const bool counted = summary.flops > 0;
  const int64_t on_device = summary.device_ns;
  int64_t self = 0, of_no_operator = on_device;
  for (const auto& row : summary.operators) {
    self += row.self_ns;
    of_no_operator -= row.device_ns;
  }
  std::string text = fmt::format(
      "{} steps in {:.2f} ms: waiting for data {}, communication {}, {} of it while operators computed{}{}\n",
      summary.steps, milliseconds(whole), share_text(summary.data_wait_ns, whole),
      share_text(summary.communication_ns, whole), share_text(summary.overlapped_ns, summary.communication_ns),
      busy_text(summary), rates_text(summary));
  text +=
      fmt::format("{:<44} {:>8} {:>12} {:>8} {:>12} {:>12}{}{}\n", "operator", "calls", "self ms", "self %", "total ms",
                  "us a call", on_device > 0 ? "    device ms device %" : "", counted ? "        GFLOP" : "");
  for (const auto& row : summary.operators) {
    if (rows-- <= 0) break;
    text += fmt::format("{:<44.44} {:>8} {:>12.3f} {:>8} {:>12.3f} {:>12.1f}", row.name, row.calls,
                        milliseconds(row.self_ns), share_text(row.self_ns, self), milliseconds(row.total_ns),
                        milliseconds(row.total_ns) * 1e3 / static_cast<double>(row.calls));
    if (on_device > 0) {
      text += fmt::format(" {:>12.3f} {:>8}", milliseconds(row.device_ns), share_text(row.device_ns, on_device));
    }
    if (counted)
      text += row.flops > 0 ? fmt::format(" {:>12.3f}", static_cast<double>(row.flops) * 1e-9) : "            -";
    text += '\n';
  }
  if (of_no_operator > 0) {
    text +=
        fmt::format("{:<44} {:>8} {:>12} {:>8} {:>12} {:>12} {:>12.3f} {:>8}\n", "of no operator: replays of a graph",
                    "-", "-", "-", "-", "-", milliseconds(of_no_operator), share_text(of_no_operator, on_device));
  }
  return text;
}

}  // namespace accelerate::profile
