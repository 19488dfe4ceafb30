// SPDX-License-Identifier: Apache-2.0
#include "accelerate/profile/summary_json.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace accelerate::profile {
namespace {

using Summary = nlohmann::ordered_json;

constexpr size_t kListed = 50;

double in_ms(int64_t ns) { return static_cast<double>(ns) * 1e-6; }
double in_gflop(uint64_t flops) { return static_cast<double>(flops) * 1e-9; }

}  // namespace

std::string summary_json(const TraceSummary& summary, const RankContext& place) {
  Summary rank{{"rank", place.rank},
               {"host", place.host},
               {"step_ms", Summary::array()},
               {"data_wait_ms", in_ms(summary.data_wait_ns)},
               {"communication_ms", in_ms(summary.communication_ns)},
               {"overlapped_ms", in_ms(summary.overlapped_ns)},
               {"device_busy_ms", in_ms(summary.device_busy_ns)},
               {"gflop", in_gflop(summary.flops)},
               {"peak_gflop_per_s", summary.peak_flops_per_s * 1e-9},
               {"peak_allocated_bytes", summary.peak_allocated_bytes},
               {"peak_resident_bytes", summary.peak_resident_bytes},
               {"operators", Summary::array()}};
  for (const int64_t ns : summary.step_ns) rank["step_ms"].push_back(in_ms(ns));
  for (size_t i = 0; i < std::min(summary.operators.size(), kListed); ++i) {
    const auto& one = summary.operators[i];
    rank["operators"].push_back({{"name", one.name},
                                 {"calls", one.calls},
                                 {"self_ms", in_ms(one.self_ns)},
                                 {"total_ms", in_ms(one.total_ns)},
                                 {"device_ms", in_ms(one.device_ns)},
                                 {"gflop", in_gflop(one.flops)}});
  }
  return rank.dump(-1, ' ', false, Summary::error_handler_t::replace);
}

std::string summaries_json(const std::vector<std::string>& ranks) {
  std::string all = "{\"ranks\":[";
  for (size_t i = 0; i < ranks.size(); ++i) all += (i == 0 ? "\n" : ",\n") + ranks[i];
  return all + "\n]}\n";
}

}  // namespace accelerate::profile
