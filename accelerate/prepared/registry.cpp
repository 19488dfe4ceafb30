// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/registry.hpp"

#include <array>

namespace accelerate::prepared {
namespace {

constexpr std::array<std::string_view, 4> kKindNames{"model", "optimizer", "loader", "scheduler"};

bool is_gone(const std::shared_ptr<Entry>& entry) { return entry->gone(); }

}  // namespace

std::string_view prepared_kind_name(Kind kind) { return kKindNames.at(static_cast<size_t>(kind)); }

std::string Entry::name() const {
  const std::string of_kind(prepared::prepared_kind_name(kind_));
  return index_ == 0 ? of_kind : of_kind + "_" + std::to_string(index_);
}

std::shared_ptr<void> Entry::add_handle(std::shared_ptr<void> object, bool owned) {
  if (owned) {
    owned_ = object;
  } else if (auto held = handles_.lock()) {
    return held;
  }
  handles_ = object;
  return object;
}

const std::vector<std::shared_ptr<Entry>>& Registry::entries() {
  if (std::any_of(entries_.begin(), entries_.end(), is_gone)) {
    std::erase_if(entries_, is_gone);
    changed();
  }
  return entries_;
}

size_t Registry::remove(const Entry& entry) {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const auto& one) { return one.get() == &entry; });
  const auto place = static_cast<size_t>(found - entries_.begin());
  if (found == entries_.end()) return place;
  const auto removed = std::move(*found);
  entries_.erase(found);
  changed();
  removed->retire();
  return place;
}

void Registry::insert(size_t place, std::shared_ptr<Entry> entry) {
  entries_.insert(entries_.begin() + static_cast<std::ptrdiff_t>(place), std::move(entry));
  changed();
}

void Registry::clear() {
  const auto removed = std::exchange(entries_, {});
  changed();
  for (const auto& entry : removed) entry->retire();
}

void Registry::changed() {
  ++version_;
  std::array<int64_t, kKindNames.size()> count{};
  for (const auto& entry : entries_) entry->index_ = count.at(static_cast<size_t>(entry->kind()))++;
}

}  // namespace accelerate::prepared
