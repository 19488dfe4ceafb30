// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/graph_shelf.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace accelerate::prepared {
namespace {

// Bounds the memory for shapes that occur only once.
constexpr size_t kMostShapes = 1024;

void at_least_one(const char* option, int64_t value, const Place& place) {
  if (value < 1) base::fail(ErrorKind::usage, place, "graphed_step", "{} is {}, must be at least 1", option, value);
}

}  // namespace

void check(const GraphOptions& options, const Place& place) {
  at_least_one("warmup_steps", options.warmup_steps, place);
  at_least_one("max_graphs", options.max_graphs, place);
}

std::string why_no_graphs(c10::Device device, const device::GraphRow* graphs, std::string_view backend, int64_t ranks) {
  if (device.is_cpu()) return "the CPU has no graphs";
  if (graphs == nullptr) return fmt::format("{} has no graphs in this build", device.str());
  if (ranks == 1 || backend.substr(0, backend.find('+')) == graphs->backend) return {};
  return fmt::format("collectives of backend {} cannot be recorded, only those of {}", backend, graphs->backend);
}

void GraphShelf::clear() {
  wasted_ += std::count_if(kept_.begin(), kept_.end(),
                           [](const auto& each) { return each.second.recorded && each.second.replays == 0; });
  kept_.clear();
  graphs_ = 0;
}

GraphShelf::Decision GraphShelf::keep_or_record(Kept& kept, bool changed) {
  if (kept.recorded) {
    ++kept.replays;
    return {Action::replay, kept.graph};
  }
  if (++kept.plain <= options_.warmup_steps) return {};
  if (changed) {
    why_plain_ = "options, parameters or state of the step change from call to call";
  } else if (wasted_ >= options_.max_graphs) {
    why_plain_ = fmt::format(
        "options, parameters or state of the step changed after each of {} recordings, before the first replay",
        wasted_);
  } else if (graphs_ >= options_.max_graphs) {
    why_plain_ =
        fmt::format("there are {} graphs, as many as max_graphs; inputs of other shapes are not recorded", graphs_);
  } else {
    kept.recorded = true;
    kept.graph = static_cast<size_t>(graphs_++);
    return {Action::record, kept.graph};
  }
  return {};
}

GraphShelf::Decision GraphShelf::next(const std::string& inputs, uint64_t made_of) {
  const bool changed = std::exchange(made_of_, made_of) != made_of;
  const bool cleared = changed && graphs_ > 0;
  if (cleared) clear();
  if (!kept_.contains(inputs) && kept_.size() == kMostShapes) return {.cleared = cleared};
  Decision decision = keep_or_record(kept_[inputs], changed);
  decision.cleared = cleared;
  return decision;
}

}  // namespace accelerate::prepared
