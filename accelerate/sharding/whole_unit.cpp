// SPDX-License-Identifier: Apache-2.0
#include "accelerate/sharding/whole_unit.hpp"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "accelerate/base/log.hpp"
#include "accelerate/comm/error_context.hpp"
#include "accelerate/comm/operation_item.hpp"
#include "accelerate/device/absent_memory.hpp"
#include "accelerate/device/streams.hpp"

namespace accelerate::sharding {
namespace {

using device::current_stream, device::event_on;

constexpr units::MemoryErrors kExchangeErrors{
    .operation = "sharding",
    .absent =
        "is on its way from the ranks that stepped on it, and only operators wait for it; before data_ptr() or "
        "torch::save(), call summon_full_params(model)",
    .without_owner =
        "has no values of the last step, because its all-gather failed before the Accelerator ended; load a checkpoint",
    .key_in_use = "use no_shard"};

bool is_in(const at::Tensor& parameter, const c10::Storage& storage) {
  return parameter.storage().unsafeGetStorageImpl() == storage.unsafeGetStorageImpl();
}

}  // namespace

WholeUnit::WholeUnit(int64_t index, std::string name, comm::Group group, std::shared_ptr<UseOrder> order)
    : index_(index), name_(std::move(name)), group_(std::move(group)), order_(std::move(order)) {}

WholeUnit::~WholeUnit() {
  if (failure_) return;  // an operator reported it; the next one reports that the Accelerator ended
  try {
    release();
  } catch (const std::exception& error) {
    base::log(base::LogLevel::warning, group_.place(), "{}: the parameters have no values of the last step: {}", name_,
              error.what());
  }
}

void WholeUnit::share_memory(Member& member) {
  void* memory = static_cast<char*>(values_.mutable_data_ptr()) + member.placed.offset * values_.element_size();
  units::set_storage_memory(member.storage, memory, member.gathered);
  units::set_absence_text(member.storage, *member.gathered);
  units::enable_gather_on_use(member.placed.parameter, kExchangeErrors);
}

void WholeUnit::adopt(at::Tensor values, std::vector<PlacedParameter> parameters) {
  values_ = std::move(values);
  for (PlacedParameter& placed : parameters) {
    has_aliases_ = has_aliases_ || placed.parameter.storage().use_count() > 1;
    auto gathered =
        std::make_shared<units::GatheredParameter>(weak_from_this(), placed.name, &kExchangeErrors, values_);
    c10::Storage storage = placed.parameter.storage();
    const int64_t numel = placed.parameter.numel();
    members_.push_back({std::move(placed), numel, std::move(storage), std::move(gathered)});
    share_memory(members_.back());
  }
}

void WholeUnit::adopt_replaced_storages() {
  const at::NoGradGuard no_grad;
  for (Member& member : members_) {
    at::Tensor& parameter = member.placed.parameter;
    // The sharding refuses a step after any other change.
    const bool is_replaced = !is_in(parameter, member.storage) && parameter.dtype() == values_.dtype() &&
                             parameter.device() == values_.device() && parameter.numel() == member.numel &&
                             parameter.is_non_overlapping_and_dense();
    if (!is_replaced) continue;
    if (!units::fills_its_storage(parameter)) parameter.set_data(parameter.detach().clone());
    values_.as_strided(parameter.sizes(), parameter.strides(), member.placed.offset).copy_(parameter.detach());
    member.storage = parameter.storage();
    share_memory(member);
  }
}

void WholeUnit::release() {
  finish_exchange();
  for (const Member& member : std::exchange(members_, {})) {
    const at::Tensor& parameter = member.placed.parameter;
    if (!is_in(parameter, member.storage)) continue;
    units::share_parameter_memory(parameter, values_, member.placed.offset);
    units::disable_gather_on_use(parameter);
  }
}

at::Tensor WholeUnit::part() const {
  const int64_t length = values_.numel() / group_.size();
  return values_.narrow(0, group_.rank() * length, length);
}

// The part is sent from a copy, because not every backend gathers in place.
void WholeUnit::start_exchange() {
  const at::NoGradGuard no_grad;
  finish_exchange();
  start_all_gather();
  if (has_aliases_) finish_exchange();  // operators on other tensors over the same memory would not wait
}

void WholeUnit::start_all_gather() {
  const std::lock_guard lock(mutex_);
  sent_ = part().clone();
  if (!values_.is_cpu()) sent_stream_ = current_stream(values_.device());
  const comm::OperationItem item(index_);
  pending_ = group_.all_gather_async(values_, sent_);
  arrived_.reset();
  waited_.clear();
  for (const Member& member : members_) device::refuse_data(*member.storage.unsafeGetStorageImpl(), true);
  is_pending_.store(true, std::memory_order_release);
}

void WholeUnit::finish_exchange() {
  if (is_pending_.load(std::memory_order_acquire)) end_all_gather();
  make_stream_wait();  // if another stream waited
}

void WholeUnit::end_all_gather() {
  const std::lock_guard lock(mutex_);
  if (!is_pending_) return;  // another thread waited
  if (failure_) std::rethrow_exception(failure_);
  try {
    comm::with_operation_context("optimizer.step", fmt::format("{} is not exchanged after the step", name_),
                                 group_.place(), [&] { pending_.wait(); });
  } catch (...) {
    failure_ = std::current_exception();
    throw;
  }
  if (!values_.is_cpu()) {
    const c10::Stream stream = current_stream(values_.device());
    arrived_.emplace(event_on(stream));
    waited_.push_back(stream);
    if (sent_stream_ && *sent_stream_ != stream) {  // it may use the memory of the sent part again
      arrived_->block(*sent_stream_);
      waited_.push_back(*sent_stream_);
    }
  }
  end_exchange();
}

void WholeUnit::end_exchange() {
  pending_ = {};
  sent_.reset();
  for (const Member& member : members_) device::refuse_data(*member.storage.unsafeGetStorageImpl(), false);
  is_pending_.store(false, std::memory_order_release);
}

void WholeUnit::forget_exchange() {
  const std::lock_guard lock(mutex_);
  arrived_.reset();
  waited_.clear();
  end_exchange();
}

// Another stream may use the unit after the first one waited.
void WholeUnit::make_stream_wait() {
  if (values_.is_cpu()) return;
  const std::lock_guard lock(mutex_);
  if (!arrived_) return;
  const c10::Stream stream = current_stream(values_.device());
  if (std::ranges::find(waited_, stream) != waited_.end()) return;
  arrived_->block(stream);
  waited_.push_back(stream);
}

void WholeUnit::before_operator(const units::GatheredParameter&, bool) {
  order_->record(index_);
  finish_exchange();
}

}  // namespace accelerate::sharding
