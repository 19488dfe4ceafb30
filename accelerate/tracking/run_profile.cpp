// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tracking/run_profile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

namespace accelerate::tracking {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kLargest = 1e15;  // prevents overflow of sums

/// Returns a value that can be drawn: finite and not negative; otherwise 0.
double number_at(const Json& object, const char* name) {
  const auto found = object.find(name);
  const double value = found != object.end() && found->is_number() ? found->get<double>() : 0.0;
  return value > 0 && value < kLargest ? value : 0.0;
}

int64_t count_at(const Json& object, const char* name) { return static_cast<int64_t>(number_at(object, name)); }

std::string text_at(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

template <typename Each>
void for_objects(const Json& object, const char* name, const Each& each) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_array()) return;
  for (const auto& one : *found) {
    if (one.is_object()) each(one);
  }
}

OperatorCost operator_of(const Json& json) {
  return {.name = text_at(json, "name"),
          .calls = count_at(json, "calls"),
          .self_ms = number_at(json, "self_ms"),
          .total_ms = number_at(json, "total_ms"),
          .device_ms = number_at(json, "device_ms"),
          .gflop = number_at(json, "gflop")};
}

RankProfile rank_of(const Json& json) {
  RankProfile rank{.rank = count_at(json, "rank"),
                   .host = text_at(json, "host"),
                   .data_wait_ms = number_at(json, "data_wait_ms"),
                   .communication_ms = number_at(json, "communication_ms"),
                   .overlapped_ms = number_at(json, "overlapped_ms"),
                   .device_busy_ms = number_at(json, "device_busy_ms"),
                   .gflop = number_at(json, "gflop"),
                   .peak_gflop_per_s = number_at(json, "peak_gflop_per_s"),
                   .peak_allocated_bytes = count_at(json, "peak_allocated_bytes"),
                   .peak_resident_bytes = count_at(json, "peak_resident_bytes")};
  if (const auto steps = json.find("step_ms"); steps != json.end() && steps->is_array()) {
    for (const auto& step : *steps) {
      if (step.is_number() && step.get<double>() >= 0 && step.get<double>() < kLargest) {
        rank.step_ms.push_back(step.get<double>());
      }
    }
  }
  for_objects(json, "operators", [&](const Json& one) { rank.operators.push_back(operator_of(one)); });
  return rank;
}

}  // namespace

double RankProfile::length_ms() const { return std::accumulate(step_ms.begin(), step_ms.end(), 0.0); }

std::optional<std::vector<RankProfile>> parse_run_profile(std::string_view json) {
  const Json whole = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!whole.is_object() || !whole.contains("ranks") || !whole["ranks"].is_array()) return std::nullopt;
  std::vector<RankProfile> ranks;
  for_objects(whole, "ranks", [&](const Json& one) { ranks.push_back(rank_of(one)); });
  return ranks;
}

std::vector<OperatorCost> operators_of(const std::vector<RankProfile>& ranks) {
  std::map<std::string, OperatorCost> by_name;
  for (const auto& rank : ranks) {
    for (const auto& one : rank.operators) {
      auto& sum = by_name[one.name];
      sum.name = one.name;
      sum.calls += one.calls;
      sum.self_ms += one.self_ms;
      sum.total_ms += one.total_ms;
      sum.device_ms += one.device_ms;
      sum.gflop += one.gflop;
    }
  }
  std::vector<OperatorCost> all;
  for (auto& [name, sum] : by_name) all.push_back(std::move(sum));
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::pair(a.device_ms, a.self_ms) > std::pair(b.device_ms, b.self_ms);
  });
  return all;
}

std::string data_verdict(const std::vector<RankProfile>& ranks) {
  const RankProfile* slowest = nullptr;
  double most = 0.0;
  for (const auto& rank : ranks) {
    const double share = rank.length_ms() > 0 ? rank.data_wait_ms / rank.length_ms() : 0.0;
    if (rank.length_ms() > 0 && (slowest == nullptr || share > most)) {
      slowest = &rank;
      most = share;
    }
  }
  if (slowest == nullptr) return "No step was recorded.";
  if (most > 0.05) {
    return fmt::format(
        "The data are the bottleneck: rank {} waited {:.1f} % of its steps for them. More workers (num_workers), or a "
        "cheaper read, would help.",
        slowest->rank, 100 * most);
  }
  return fmt::format(
      "The step is the bottleneck, the data keep up: rank {} waited longest for them, {:.1f} % of its steps.",
      slowest->rank, 100 * most);
}

}  // namespace accelerate::tracking
