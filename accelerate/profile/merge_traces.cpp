// SPDX-License-Identifier: Apache-2.0
#include "accelerate/profile/merge_traces.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace accelerate::profile {
namespace {

using Json = nlohmann::json;

/// Returns nothing if the text is not a Chrome trace.
std::optional<Json> parsed(const std::string& text) {
  Json all = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!all.is_object() || !all.contains("traceEvents") || !all["traceEvents"].is_array()) return {};
  return all;
}

/// Start of the trace's clock in nanoseconds. Event times are microseconds relative to it.
int64_t base_of(const Json& trace) { return trace.value("baseTimeNanoseconds", int64_t{0}); }

/// Adds one rank's events to the merged trace, with process ids that are unique over all ranks.
class RankEvents {
 public:
  RankEvents(int64_t rank, double later_us, int64_t& next_process)
      : rank_(rank), later_us_(later_us), next_process_(next_process) {}

  void move_into(Json& whole, Json& event) {
    if (!event.is_object()) return;
    if (event.contains("pid")) event["pid"] = process(event["pid"]);
    if (event.contains("ts") && event["ts"].is_number()) event["ts"] = event["ts"].get<double>() + later_us_;
    // Flow arrows connect events with equal ids, so ids are made unique per rank.
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

MergedTrace merged_trace(const std::vector<RankTrace>& traces) {
  MergedTrace merged;
  std::vector<Json> all;
  std::vector<int64_t> ranks;
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const auto& trace : traces) {
    auto one = parsed(trace.json);
    if (!one) {
      merged.left_out.push_back(trace.rank);
      continue;
    }
    first = std::min(first, base_of(*one));
    all.push_back(std::move(*one));
    ranks.push_back(trace.rank);
  }
  Json whole = all.empty() ? Json::object() : all.front();
  whole["traceEvents"] = Json::array();
  if (!all.empty()) whole["baseTimeNanoseconds"] = first;
  int64_t next_process = 1;
  for (size_t i = 0; i < all.size(); ++i) {
    RankEvents events(ranks[i], static_cast<double>(base_of(all[i]) - first) * 1e-3, next_process);
    for (auto& event : all[i]["traceEvents"]) events.move_into(whole["traceEvents"], event);
  }
  merged.json = whole.dump(-1, ' ', false, Json::error_handler_t::replace);
  return merged;
}

std::string with_escaped_names(std::string_view trace) {
  // LibTorch writes a range on one line: "ph": "X", "cat": "user_annotation", "name": "...", "pid": 7, "tid": 7,
  constexpr std::string_view range = R"("ph": "X")", name = R"("name": ")", after = R"(", "pid": )";
  std::string escaped;
  escaped.reserve(trace.size());
  while (!trace.empty()) {
    const auto line = trace.substr(0, std::min(trace.find('\n'), trace.size() - 1) + 1);
    trace.remove_prefix(line.size());
    const auto found = line.find(name), end = line.rfind(after);
    const auto begin = found + name.size();
    if (line.find(range) == line.npos || found == line.npos || end == line.npos || end < begin) {
      escaped += line;
      continue;
    }
    escaped += line.substr(0, begin);
    for (auto at = begin; at < end; ++at) {
      if (line[at] == '"' && line[at - 1] != '\\') escaped += '\\';
      escaped += line[at];
    }
    escaped += line.substr(end);
  }
  return escaped;
}

}  // namespace accelerate::profile
