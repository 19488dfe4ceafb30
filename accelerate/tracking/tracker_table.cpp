// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tracking/tracker_table.hpp"

namespace accelerate::tracking {
namespace {

struct KindRow {
  std::string_view name;
  std::unique_ptr<Tracker> (*make)();
};

constexpr KindRow kKinds[] = {
#define ACCELERATE_TRACKER(name) {#name, make_##name},
#include "accelerate/tracking/tracker_table.def"
#undef ACCELERATE_TRACKER
};

}  // namespace

std::vector<std::string> tracker_names() {
  std::vector<std::string> names;
  for (const auto& row : kKinds) names.emplace_back(row.name);
  return names;
}

std::unique_ptr<Tracker> make_tracker(std::string_view name) {
  for (const auto& row : kKinds) {
    if (row.name == name) return row.make();
  }
  return nullptr;
}

}  // namespace accelerate::tracking
