// SPDX-License-Identifier: Apache-2.0
#include "accelerate/sharding/gather_order.hpp"

#include <fmt/format.h>

#include <utility>

namespace accelerate::sharding {
namespace {

constexpr size_t kMaxHistory = 200;

uint64_t with_code(uint64_t hash, int64_t code) { return base::hash_word(static_cast<uint64_t>(code + 1), hash); }

}  // namespace

void GatherOrder::begin_pass(bool learns) {
  if (!gathers_.empty()) previous_[learns_ ? 1 : 0] = std::exchange(gathers_, {});
  learns_ = learns;
  is_predictable_ = !previous_[learns ? 1 : 0].empty();
}

void GatherOrder::record_gather(int64_t unit, bool in_backward) {
  const Gather* const next = next_gather();
  is_predictable_ = next != nullptr && next->unit == unit;
  gathers_.push_back({unit, in_backward});
  add(2 * unit);
}

void GatherOrder::record_reduction(int64_t unit) {
  add(2 * unit + 1);
  reduction_hash_ = with_code(reduction_hash_, unit);
}

const GatherOrder::Gather* GatherOrder::next_gather() const {
  const auto& previous = previous_[learns_ ? 1 : 0];
  return is_predictable_ && gathers_.size() < previous.size() ? &previous[gathers_.size()] : nullptr;
}

std::optional<int64_t> GatherOrder::predicted() const {
  const Gather* const next = next_gather();
  return next == nullptr ? std::nullopt : std::optional(next->unit);
}

bool GatherOrder::predicts_backward() const {
  const Gather* const next = next_gather();
  return next != nullptr && next->in_backward;
}

std::string GatherOrder::history() const { return history_text(/*with_gathers=*/true); }

std::string GatherOrder::reduction_history() const { return history_text(/*with_gathers=*/false); }

std::string GatherOrder::history_text(bool with_gathers) const {
  std::string text;
  for (const int64_t code : history_) {
    if (code % 2 == 0 && !with_gathers) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", code % 2 == 0 ? "gather" : "reduce", code / 2);
  }
  return text;
}

void GatherOrder::clear_history() {
  hash_ = reduction_hash_ = base::kEmptyHash;
  history_.clear();
}

void GatherOrder::add(int64_t code) {
  hash_ = with_code(hash_, code);
  if (history_.size() < kMaxHistory) history_.push_back(code);
}

}  // namespace accelerate::sharding
