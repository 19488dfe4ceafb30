// SPDX-License-Identifier: Apache-2.0
#include "accelerate/profile/merge_traces.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "accelerate/base/error.hpp"

namespace accelerate::profile {
namespace {

using Json = nlohmann::json;

Json parsed(const RankTrace& trace) {
  Json all = Json::parse(trace.json, nullptr, /*allow_exceptions=*/false);
  if (!all.is_object() || !all.contains("traceEvents") || !all["traceEvents"].is_array()) {
    base::fail(ErrorKind::data, {}, "merge traces", "rank {}'s is no Chrome trace: an object with traceEvents",
               trace.rank);
  }
  return all;
}

/// Nanoseconds at which its clock begins; times of events are microseconds after it.
int64_t base_of(const Json& trace) { return trace.value("baseTimeNanoseconds", int64_t{0}); }

/// One rank's events on their way into the whole: processes get numbers that no other rank has.
class RankEvents {
 public:
  RankEvents(int64_t rank, double later_us, int64_t& next_process)
      : rank_(rank), later_us_(later_us), next_process_(next_process) {}

  void move_into(Json& whole, Json& event) {
    if (!event.is_object()) return;
    if (event.contains("pid")) event["pid"] = process(event["pid"]);
    if (event.contains("ts") && event["ts"].is_number()) event["ts"] = event["ts"].get<double>() + later_us_;
    // Arrows join what has one number.
    if (event.contains("id")) event["id"] = "rank " + std::to_string(rank_) + " " + event["id"].dump();
    if (event.value("name", "") == "process_name" && event.contains("args")) {
      event["args"]["name"] = "rank " + std::to_string(rank_) + ": " + event["args"].value("name", "");
    }
    whole.push_back(std::move(event));
  }

 private:
  int64_t process(const Json& pid) {
    const auto [at, is_new] = processes_.try_emplace(pid.dump(), next_process_);
    if (is_new) ++next_process_;
    return at->second;
  }

  int64_t rank_;
  double later_us_;
  int64_t& next_process_;
  std::map<std::string, int64_t> processes_;
};

}  // namespace

std::string merged_trace(const std::vector<RankTrace>& traces) {
  std::vector<Json> all;
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const auto& trace : traces) {
    all.push_back(parsed(trace));
    first = std::min(first, base_of(all.back()));
  }
  Json whole = all.empty() ? Json::object() : all.front();
  whole["traceEvents"] = Json::array();
  if (!all.empty()) whole["baseTimeNanoseconds"] = first;
  int64_t next_process = 1;
  for (size_t i = 0; i < all.size(); ++i) {
    RankEvents events(traces[i].rank, static_cast<double>(base_of(all[i]) - first) * 1e-3, next_process);
    for (auto& event : all[i]["traceEvents"]) events.move_into(whole["traceEvents"], event);
  }
  return whole.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace accelerate::profile
