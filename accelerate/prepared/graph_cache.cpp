// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/graph_cache.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace accelerate::prepared {
namespace {

// Bounds the memory for shapes that occur only once.
constexpr size_t kMaxShapes = 1024;

void at_least_one(const char* option, int64_t value, const RankContext& place) {
  if (value < 1) base::fail(ErrorKind::usage, place, "graphed_step", "{} is {}, must be at least 1", option, value);
}

}  // namespace

void check_graph_options(const GraphOptions& options, const RankContext& place) {
  at_least_one("warmup_steps", options.warmup_steps, place);
  at_least_one("max_graphs", options.max_graphs, place);
}

std::string graphs_unsupported_reason(c10::Device device, const device::GraphRow* graphs, std::string_view backend,
                                      int64_t ranks) {
  if (device.is_cpu()) return "the CPU has no graphs";
  if (graphs == nullptr) return fmt::format("{} has no graphs in this build", device.str());
  if (ranks == 1 || backend.substr(0, backend.find('+')) == graphs->backend) return {};
  return fmt::format("collectives of backend {} cannot be captured, only those of {}", backend, graphs->backend);
}

void GraphCache::clear() {
  wasted_ += std::count_if(kept_.begin(), kept_.end(),
                           [](const auto& each) { return each.second.recorded && each.second.replays == 0; });
  kept_.clear();
  graphs_ = 0;
}

GraphCache::Decision GraphCache::keep_or_capture(Kept& kept, bool changed) {
  if (kept.recorded) {
    ++kept.replays;
    return {Action::replay, kept.graph};
  }
  if (++kept.plain <= options_.warmup_steps) return {};
  if (changed) {
    not_captured_reason_ = "options, parameters or state of the step change from call to call";
  } else if (wasted_ >= options_.max_graphs) {
    not_captured_reason_ = fmt::format(
        "options, parameters or state of the step changed after each of {} captures, before the first replay", wasted_);
  } else if (graphs_ >= options_.max_graphs) {
    not_captured_reason_ =
        fmt::format("there are {} graphs, as many as max_graphs; inputs of other shapes are not captured", graphs_);
  } else {
    kept.recorded = true;
    kept.graph = static_cast<size_t>(graphs_++);
    return {Action::record, kept.graph};
  }
  return {};
}

GraphCache::Decision GraphCache::next(const std::string& inputs, uint64_t made_of) {
  const bool changed = std::exchange(made_of_, made_of) != made_of;
  const bool cleared = changed && graphs_ > 0;
  if (cleared) clear();
  if (!kept_.contains(inputs) && kept_.size() == kMaxShapes) return {.cleared = cleared};
  Decision decision = keep_or_capture(kept_[inputs], changed);
  decision.cleared = cleared;
  return decision;
}

}  // namespace accelerate::prepared
