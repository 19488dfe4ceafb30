// SPDX-License-Identifier: Apache-2.0
#include "accelerate/offload/offloaded_units.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/offload/absent_tensor.hpp"

namespace accelerate::offload {
namespace {

// One unit that operators use, and the next one.
constexpr size_t kSlots = 2;
// Parameters begin at multiples of this number of bytes, as in memory of their own.
constexpr size_t kAlignment = 64;

constexpr units::MemoryErrors kOffloadErrors{
    .operation = "offload",
    .absent = "is offloaded, so it has no memory here; use operators, or move the module to a device",
    .without_owner = "is offloaded, and its values no longer exist",
    .key_in_use = "do not offload"};

// The memory of a parameter owns the units.
struct OwnedParameter {
  units::GatheredParameter parameter{};
  std::shared_ptr<OffloadedUnits> owner{};
};

}  // namespace

void OffloadedUnits::create(std::vector<OffloadedParameter> parameters, c10::Device device,
                            const units::UnitOptions& options, bool prefetch) {
  if (parameters.empty()) return;
  std::vector<units::UnitItem> items;
  for (const OffloadedParameter& parameter : parameters) {
    items.push_back({parameter.name, parameter.parameter.numel(), static_cast<int64_t>(parameter.parameter.nbytes())});
  }
  const auto unit_of = units::find_units(items, options);
  std::vector<std::vector<OffloadedParameter>> lists(static_cast<size_t>(std::ranges::max(unit_of)) + 1);
  for (size_t i = 0; i < parameters.size(); ++i) {
    lists[static_cast<size_t>(unit_of[i])].push_back(std::move(parameters[i]));
  }
  const std::shared_ptr<OffloadedUnits> units(new OffloadedUnits(device, prefetch));
  units->loader_ = std::thread([raw = units.get()] { raw->load_units(); });
  for (auto& list : lists) units->add_unit(std::move(list));
  for (size_t i = 0; i < units->units_.size(); ++i) {
    units->units_[i]->next = units->units_[(i + 1) % units->units_.size()].get();
  }
}

void OffloadedUnits::add_unit(std::vector<OffloadedParameter> parameters) {
  units_.push_back(std::make_unique<Unit>());
  Unit& unit = *units_.back();
  unit.index = units_.size() - 1;
  unit.content = std::make_unique<UnitContent>();
  for (OffloadedParameter& offloaded : parameters) {
    const at::Tensor& parameter = offloaded.parameter;
    unit.content->parts.push_back({.source = std::move(offloaded.source),
                                   .offset = unit.content->bytes,
                                   .bytes = parameter.nbytes(),
                                   .dtype = parameter.scalar_type()});
    unit.content->bytes += (parameter.nbytes() + kAlignment - 1) / kAlignment * kAlignment;
  }
  copies_.pin(*unit.content);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i].parameter;
    units::enable_gather_on_use(parameter, kOffloadErrors);  // may throw, so before the memory is taken
    take_memory(parameter, device_);
    units::enable_gather_on_use(parameter, kOffloadErrors);
    auto member = std::make_unique<Member>(parameter.storage());
    member->parent = this;
    member->unit = &unit;
    member->name = parameters[i].name;
    member->offset = unit.content->parts[i].offset;
    member->learns = parameter.requires_grad();
    member->is_buffer = parameters[i].is_buffer;
    set_memory(*member, nullptr);
    unit.members.push_back(std::move(member));
  }
  slot_bytes_ = std::max(slot_bytes_, unit.content->bytes);
}

OffloadedUnits::~OffloadedUnits() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    queue_.clear();
  }
  changed_.notify_all();
  if (loader_.joinable()) loader_.join();
  copies_.finish();
  for (const auto& slot : slots_) copies_.before_free(slot->memory);
}

void OffloadedUnits::set_memory(const Member& member, void* memory) {
  const auto storage = member.storage.lock();
  if (!storage) return;
  const auto owned = std::make_shared<OwnedParameter>();
  owned->owner = shared_from_this();
  // The operator that uses a member thereby keeps all units alive.
  const std::shared_ptr<units::GatherOnUse> owner(owned->owner, const_cast<Member*>(&member));
  owned->parameter = {.owner = owner, .name = member.name, .errors = &kOffloadErrors};
  units::set_storage_memory(c10::Storage(storage), memory,
                            std::shared_ptr<const units::GatheredParameter>(owned, &owned->parameter));
}

void OffloadedUnits::use(Member& member, const std::string& name, bool writes) {
  if (writes && member.is_buffer) {
    base::fail(ErrorKind::usage, {}, "offload",
               "an operator writes to buffer {}, which is offloaded, so the values would be lost; call eval(), or "
               "leave offload_buffers unset",
               name);
  }
  if (writes) {
    base::fail(ErrorKind::usage, {}, "offload",
               "an operator writes to parameter {}, which is offloaded, so the values would be lost; change the "
               "parameters before the offload",
               name);
  }
  if (member.learns && at::GradMode::is_enabled()) {
    base::fail(ErrorKind::usage, {}, "offload",
               "parameter {} is offloaded and requires a gradient, but offloaded parameters are not trained; use "
               "torch::NoGradGuard, call requires_grad_(false) before the offload, or train with full_shard",
               name);
  }
  Unit& unit = *member.unit;
  std::unique_lock lock(mutex_);
  ++unit.users;
  try {
    make_present(unit, lock);
    copies_.wait_on_current_stream(unit.slot->memory);
  } catch (...) {
    --unit.users;
    throw;
  }
  if (last_ != &unit) {
    if (last_ != nullptr) last_->next = &unit;
    last_ = &unit;
    unit.last_use = ++changes_;
  }
  prefetch_after(unit);
}

void OffloadedUnits::release(Unit& unit) noexcept {
  const std::lock_guard lock(mutex_);
  --unit.users;
}

void OffloadedUnits::make_present(Unit& unit, std::unique_lock<std::mutex>& lock) {
  while (unit.state != State::present) {
    if (unit.state == State::loaded) {
      for (const auto& member : unit.members) {
        set_memory(*member, static_cast<char*>(unit.slot->memory.bytes.mutable_data_ptr()) + member->offset);
      }
      unit.state = State::present;
      return;
    }
    if (unit.error) std::rethrow_exception(std::exchange(unit.error, nullptr));
    // If no slot is free, another copy is in progress.
    if (unit.state == State::absent) (void)start(unit, /*may_grow=*/true);
    const uint64_t before = loads_;
    changed_.wait(lock, [&] { return loads_ != before || unit.state == State::present; });
  }
}

void OffloadedUnits::prefetch_after(const Unit& unit) {
  if (!prefetches_ || unit.next == nullptr || unit.next == &unit) return;
  Unit& next = *unit.next;
  if (next.state == State::absent && !next.error) (void)start(next, /*may_grow=*/false);
}

bool OffloadedUnits::start(Unit& unit, bool may_grow) {
  Slot* slot = find_slot(may_grow);
  if (slot == nullptr) return false;
  slot->unit = &unit;
  unit.slot = slot;
  unit.state = State::loading;
  queue_.push_back(&unit);
  changed_.notify_all();
  return true;
}

OffloadedUnits::Slot* OffloadedUnits::find_slot(bool may_grow) {
  Slot* oldest = nullptr;
  bool is_loading = false;
  for (const auto& slot : slots_) {
    if (slot->unit == nullptr) return slot.get();
    is_loading = is_loading || slot->unit->state == State::loading;
    if (slot->unit->users > 0 || slot->unit->state == State::loading) continue;
    if (oldest == nullptr || slot->unit->last_use < oldest->unit->last_use) oldest = slot.get();
  }
  const bool all_in_use = oldest == nullptr && !is_loading;
  if (slots_.size() < kSlots || (all_in_use && may_grow)) {
    slots_.push_back(std::make_unique<Slot>());
    return slots_.back().get();
  }
  if (oldest != nullptr) make_absent(*oldest->unit);
  return oldest;
}

void OffloadedUnits::make_absent(Unit& unit) {
  if (unit.state == State::present) {
    for (const auto& member : unit.members) set_memory(*member, nullptr);
  }
  copies_.end_use(unit.slot->memory);
  unit.slot->unit = nullptr;
  unit.slot = nullptr;
  unit.state = State::absent;
}

// Body of the thread that reads and copies.
void OffloadedUnits::load_units() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || !queue_.empty(); });
    if (ends_) return;
    Unit& unit = *queue_.front();
    queue_.pop_front();
    Slot& slot = *unit.slot;
    lock.unlock();
    std::exception_ptr error;
    try {
      if (!slot.memory.bytes.defined()) slot.memory = copies_.allocate(slot_bytes_);
      copies_.copy(*unit.content, slot.memory);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    unit.error = unit.users > 0 ? error : nullptr;  // a prefetch is tried again at the first use
    unit.state = error ? State::absent : State::loaded;
    if (error) {
      unit.slot = nullptr;
      slot.unit = nullptr;
    }
    ++loads_;
    changed_.notify_all();
  }
}

}  // namespace accelerate::offload
