// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/active_loaders.hpp"

#include <algorithm>
#include <utility>

namespace accelerate::prepared {

const state::BatchInfo* ActiveLoaders::active() const {
  const ActiveLoaderScope* outermost = nullptr;
  const ActiveLoaderScope* innermost = nullptr;
  for (const ActiveLoaderScope* loop : loops_) {
    if (loop->ended_) continue;
    if (outermost == nullptr) outermost = loop;
    if (!loop->is_by_hand()) innermost = loop;
  }
  const ActiveLoaderScope* loop = innermost != nullptr ? innermost : outermost;
  return loop == nullptr ? nullptr : loop->info_;
}

state::BatchInfo ActiveLoaders::of(const void* loader) const {
  const auto found = std::find_if(loops_.rbegin(), loops_.rend(), [&](const ActiveLoaderScope* loop) {
    return loop->loader_ == loader && !loop->ended_;
  });
  return found == loops_.rend() ? state::BatchInfo{} : *(*found)->info_;
}

std::optional<state::BatchInfo> ActiveLoaders::position_of_batch(const at::Tensor& tensor) const {
  const BatchRecord* latest = nullptr;
  const BatchRecord* earlier = nullptr;
  for (const ActiveLoaderScope* loop : loops_) {
    if (loop->batch_.shares_memory(tensor)) {
      if (latest != nullptr) return std::nullopt;  // several loaders returned the same memory
      latest = &loop->batch_;
    } else if (loop->batch_before_.shares_memory(tensor)) {
      earlier = &loop->batch_before_;
    }
  }
  const BatchRecord* record = latest != nullptr ? latest : earlier;
  return record == nullptr ? std::nullopt : std::optional(record->info());
}

std::vector<state::BatchInfo> ActiveLoaders::positions_of(const std::vector<at::Tensor>& tensors) const {
  const state::BatchInfo* loop = active();
  if (loop == nullptr) return {};
  std::vector<std::optional<state::BatchInfo>> known;
  for (const at::Tensor& tensor : tensors) known.push_back(position_of_batch(tensor));
  std::optional<state::BatchInfo> common;
  bool differ = false;
  for (const auto& position : known) {
    differ = differ || (common && position && *common != *position);
    if (position) common = position;
  }
  const state::BatchInfo others = common && !differ ? *common : *loop;
  std::vector<state::BatchInfo> positions;
  for (const auto& position : known) positions.push_back(position.value_or(others));
  return positions;
}

ActiveLoaderScope::ActiveLoaderScope(ActiveLoaders& list, const void* loader, const state::BatchInfo& info)
    : list_(list),
      loader_(loader),
      info_(&info),
      began_(++list.events_),
      stepped_(began_),
      in_outer_body_(std::ranges::any_of(list.loops_, [](const ActiveLoaderScope* other) {
        return other->in_body_ && !other->ended_ && !other->is_by_hand();
      })) {
  const bool is_outermost =
      std::all_of(list.loops_.begin(), list.loops_.end(), [](const ActiveLoaderScope* other) { return other->ended_; });
  if (is_outermost) list.by_hand_loaders_.clear();
  by_hand_ = list.by_hand_loaders_.contains(loader);
  list.loops_.push_back(this);
}

ActiveLoaderScope::~ActiveLoaderScope() {
  std::erase(list_.loops_, this);
  release_passes_beside();
}

void ActiveLoaderScope::release_passes_beside() {
  for (ActiveLoaderScope* other : list_.loops_) {
    if (other->beside_ == this) other->beside_ = nullptr;
  }
}

void ActiveLoaderScope::step() {
  stepped_ = ++list_.events_;
  in_body_ = false;
  if (beside_ != nullptr) advance_by_hand();  // a loop around the other one could not step
}

void ActiveLoaderScope::record_batch(const std::vector<at::Tensor>& tensors) {
  batch_before_ = std::exchange(batch_, BatchRecord(tensors, *info_));
}

void ActiveLoaderScope::end() {
  ended_ = true;
  batch_before_ = std::exchange(batch_, {});
  release_passes_beside();
}

void ActiveLoaderScope::enter_body() {
  in_body_ = true;
  if (in_outer_body_ && !compared_) by_hand_ = true;
  if (is_by_hand()) return;
  for (ActiveLoaderScope* other : list_.loops_) {
    const bool ended_before = other->ended_ && other->stepped_ < began_;
    if (other == this || ended_before) continue;
    const bool outlived_body = other->began_ > began_ && other->began_ < stepped_;
    if (outlived_body) other->advance_by_hand();
    if (!other->in_body_ && other->beside_ == nullptr) other->beside_ = this;
  }
}

}  // namespace accelerate::prepared
