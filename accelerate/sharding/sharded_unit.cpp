// SPDX-License-Identifier: Apache-2.0
#include "accelerate/sharding/sharded_unit.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "accelerate/base/version_counter.hpp"
#include "accelerate/comm/error_context.hpp"
#include "accelerate/comm/operation_item.hpp"
#include "accelerate/sharding/parameter_sharding.hpp"

namespace accelerate::sharding {
namespace {

constexpr units::MemoryErrors kMemoryErrors{
    .operation = "sharding",
    .absent = "is sharded, so it has no memory here; use operators, or summon_full_params()",
    .without_owner =
        "is sharded, and the Accelerator that divided it no longer exists, so this rank has only a part of its values; "
        "before the Accelerator ends, save the model, or call free_memory() on all ranks, which makes the parameters "
        "whole",
    .key_in_use = "use no_shard"};

// A parameter gets another storage when its module moves.
bool has_moved(const UnitMember& member) {
  return member.parameter.storage().unsafeGetStorageImpl() != member.storage.unsafeGetStorageImpl();
}

}  // namespace

ShardedUnit::ShardedUnit(int64_t index, std::vector<UnitMember> members, int64_t numel, bool learns)
    : index_(index), members_(std::move(members)), numel_(numel), learns_(learns) {}

// The parameters outlive the unit; the gathered memory does not. Pinned memory is reused by others when it is freed.
ShardedUnit::~ShardedUnit() {
  try {
    if (copies_) copies_->finish();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the device is lost, so nothing is copied
  }
  if (!keeps_ && part_.defined()) take_memory_from_members();
}

std::string ShardedUnit::name() const {
  return fmt::format("unit {} ({})", index_, comm::first_name_and_count(members_.front().name, members_.size()));
}

const UnitMember* ShardedUnit::moved_member() const {
  const auto moved = std::ranges::find_if(members_, has_moved);
  return moved == members_.end() ? nullptr : &*moved;
}

at::Tensor ShardedUnit::own_part_of(const at::Tensor& flat) const {
  const int64_t length = numel_ / ranks_;
  return flat.narrow(0, rank_ * length, length);
}

at::Tensor ShardedUnit::view_of(const at::Tensor& flat, const UnitMember& member) const {
  return flat.as_strided(member.parameter.sizes(), member.parameter.strides(), member.offset);
}

void ShardedUnit::adopt(const comm::Group& group, bool keep, std::weak_ptr<UnitScheduler> scheduler,
                        std::shared_ptr<UnitBuffers> buffers, std::shared_ptr<PartCopies> copies) {
  const at::NoGradGuard no_grad;
  keeps_ = keep;
  scheduler_ = std::move(scheduler);
  buffers_ = std::move(buffers);
  copies_ = std::move(copies);
  rank_ = group.rank();
  ranks_ = group.size();
  options_ = members_.front().parameter.options().requires_grad(false);
  whole_ = keep ? at::zeros({numel_}, options_) : buffers_->take(numel_, options_).zero_();
  for (UnitMember& member : members_) {
    // Recurrent layers on a GPU keep several weights in one storage.
    if (!units::fills_its_storage(member.parameter)) member.parameter.set_data(member.parameter.detach().clone());
    view_of(whole_, member).copy_(member.parameter.detach());
    member.storage = member.parameter.storage();
    const auto number = static_cast<size_t>(&member - members_.data());
    member.gathered = std::make_shared<units::GatheredParameter>(weak_from_this(), member.name, &kMemoryErrors,
                                                                 /*memory=*/at::Tensor(), number);
  }
  part_ = own_part_of(whole_);
  if (!keep) part_ = copies_ ? PartCopies::to_host(part_) : part_.clone();
  adopt_masters();
  mark_stepped();
  is_whole_ = true;
  for (const UnitMember& member : members_) {
    if (keep) {
      units::share_parameter_memory(member.parameter, whole_, member.offset);
    } else {
      units::enable_gather_on_use(member.parameter, kMemoryErrors);
    }
  }
  free();
}

void ShardedUnit::adopt_masters() {
  if (!members_.front().master.defined()) return;
  at::Tensor whole = buffers_->take(numel_, members_.front().master.options().requires_grad(false)).zero_();
  for (UnitMember& member : members_) view_of(whole, member).copy_(std::exchange(member.master, {}));
  master_ = own_part_of(whole).to(part_.device(), whole.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}

// An element that equals the rounded master did not change, so its master keeps its bits.
void ShardedUnit::update_master() {
  if (!master_.defined()) return;
  const at::Tensor is_kept = master_.to(part_.scalar_type()).eq(part_);
  master_.copy_(at::where(is_kept, master_, part_.to(master_.scalar_type())));
}

c10::TensorOptions ShardedUnit::gradient_options() const {
  return master_.defined() ? options_.dtype(master_.scalar_type()) : options_;
}

void ShardedUnit::give_memory_to_members() {
  for (const UnitMember& member : members_) {
    void* memory = static_cast<char*>(whole_.mutable_data_ptr()) + member.offset * whole_.element_size();
    units::set_storage_memory(member.storage, memory, member.gathered);
  }
}

void ShardedUnit::take_memory_from_members() {
  for (const UnitMember& member : members_) {
    units::set_storage_memory(member.storage, nullptr, member.gathered);
  }
}

void ShardedUnit::start_gather(const comm::Group& group) {
  const at::NoGradGuard no_grad;
  const comm::OperationItem item(index_);
  whole_ = buffers_->take(numel_, options_);
  const auto gather = [&](const at::Tensor& part) { return group.all_gather_async(whole_, part); };
  try {
    copies_ ? void(uploaded_gather_ = copies_->start(part_, gather)) : void(gathering_ = gather(part_));
  } catch (...) {
    whole_.reset();
    throw;
  }
}

void ShardedUnit::await_gather() {
  if (uploaded_gather_) copies_->finish(*std::exchange(uploaded_gather_, std::nullopt));
  std::exchange(gathering_, {}).wait();
}

void ShardedUnit::finish_gather() {
  try {
    await_gather();
  } catch (...) {
    whole_.reset();
    throw;
  }
  is_whole_ = true;
  is_written = false;
  give_memory_to_members();
}

void ShardedUnit::free() {
  if (!whole_.defined() || keeps_) return;
  if (!is_whole_) await_gather();
  if (is_whole_ && is_written) take_over();
  take_memory_from_members();
  is_whole_ = false;
  whole_.reset();
}

void ShardedUnit::take_over() {
  const at::NoGradGuard no_grad;
  is_written = false;
  if (!keeps_) part_.copy_(own_part_of(whole_));
  // The part of parameters that keep their memory is a view of them.
  if (!keeps_ || versions() != seen_versions_) update_master();
  mark_stepped();
}

int64_t ShardedUnit::versions() const {
  int64_t sum = 0;
  for (const UnitMember& member : members_) sum += base::version_of(member.parameter);
  return sum;
}

// The part is sent from a copy, because not every backend gathers in place.
void ShardedUnit::exchange_parts(const comm::Group& group) {
  const at::NoGradGuard no_grad;
  comm::Pending exchange = group.all_gather_async(whole_, at::empty_like(part_, options_).copy_(part_));
  exchange.wait();
}

void ShardedUnit::restore() {
  if (keeps_) return;  // the parameters share the flat tensor's memory, which outlives the unit
  const at::NoGradGuard no_grad;
  for (const UnitMember& member : members_) {
    const at::Tensor& parameter = member.parameter;
    if (has_moved(member)) continue;
    at::Tensor own = at::empty_strided(parameter.sizes(), parameter.strides(), whole_.options());
    own.copy_(view_of(whole_, member));
    units::own_parameter_memory(parameter, own);
    units::disable_gather_on_use(parameter);
  }
  part_.reset();
  master_.reset();
  whole_.reset();
  is_whole_ = false;
}

void ShardedUnit::allocate_whole_gradient() {
  if (!whole_gradient_.defined()) whole_gradient_ = buffers_->take(numel_, gradient_options());
}

void ShardedUnit::add_gradient(size_t member, const at::Tensor& gradient, const device::Factor& share) {
  UnitMember& own = members_[member];
  allocate_whole_gradient();
  own.has_gradient = true;
  auto* const memory = static_cast<char*>(whole_gradient_.mutable_data_ptr()) +
                       own.offset * static_cast<int64_t>(whole_gradient_.element_size());
  if (!own.is_filled && gradient.scalar_type() == whole_gradient_.scalar_type() &&
      share.multiply_small(gradient, own.parameter.strides(), memory)) {
    own.is_filled = true;
    return;
  }
  at::Tensor view = view_of(whole_gradient_, own);
  at::Tensor dense = gradient.is_sparse() ? gradient.to_dense() : gradient;
  if (std::exchange(own.is_filled, true)) {
    view.add_(dense, share.value());
  } else if (dense.scalar_type() == view.scalar_type()) {
    share.multiply(dense, view);
  } else {
    view.copy_(dense).mul_(share.value());
  }
}

at::Tensor ShardedUnit::local_gradient(size_t member) {
  UnitMember& own = members_[member];
  allocate_whole_gradient();
  at::Tensor view = view_of(whole_gradient_, own);
  if (!std::exchange(own.is_filled, true)) view.zero_();
  own.has_gradient = true;
  return view;
}

void ShardedUnit::start_reduction(const comm::Group& group) {
  allocate_whole_gradient();
  // The padding is zeros, too.
  int64_t end = 0;
  for (UnitMember& member : members_) {
    if (member.offset > end) whole_gradient_.narrow(0, end, member.offset - end).zero_();
    end = member.offset + member.parameter.numel();
    if (!std::exchange(member.is_filled, false)) whole_gradient_.narrow(0, member.offset, end - member.offset).zero_();
  }
  if (numel_ > end) whole_gradient_.narrow(0, end, numel_ - end).zero_();
  incoming_ = at::empty({part_.numel()}, gradient_options());
  const comm::OperationItem item(index_);
  reducing_ = group.reduce_scatter_async(incoming_, whole_gradient_);
}

void ShardedUnit::start_replica_reduction(const comm::Group& replicas) {
  std::exchange(reducing_, {}).wait();
  whole_gradient_.reset();
  const comm::OperationItem item(index_);
  reducing_ = replicas.all_reduce_async(incoming_);
}

void ShardedUnit::finish_reduction() {
  std::exchange(reducing_, {}).wait();
  whole_gradient_.reset();
  keep_gradient(std::exchange(incoming_, {}));
}

void ShardedUnit::keep_gradient(at::Tensor arrived) {
  if (!copies_) {
    gradient_.defined() ? void(gradient_.add_(arrived)) : void(gradient_ = std::move(arrived));
    return;
  }
  if (!host_gradient_.defined()) {
    host_gradient_ = at::empty(arrived.sizes(), arrived.options().device(at::kCPU).pinned_memory(true));
  }
  copies_->download(arrived, host_gradient_, /*adds=*/gradient_.defined());
  gradient_ = host_gradient_;
}

void ShardedUnit::scale_gradients(double factor) {
  if (gradient_.defined()) gradient_.mul_(factor);
  for (const UnitMember& member : members_) {
    if (member.is_filled) view_of(whole_gradient_, member).mul_(factor);
  }
}

void ShardedUnit::zero_local_gradient(size_t member, bool set_to_none) {
  if (!members_[member].is_filled) return;
  if (set_to_none) {
    members_[member].is_filled = false;
  } else {
    view_of(whole_gradient_, members_[member]).zero_();
  }
}

void ShardedUnit::drop_local_gradients() noexcept {
  try {
    std::exchange(reducing_, {}).wait();
  } catch (...) {  // NOLINT(bugprone-empty-catch): the caller reports the first error
  }
  incoming_.reset();
  whole_gradient_.reset();
  for (UnitMember& member : members_) member.is_filled = false;
}

bool ShardedUnit::is_in_forward() const { return std::ranges::any_of(members_, &UnitMember::is_in_forward); }

void ShardedUnit::begin_forward() {
  is_reduced_in_forward = false;
  for (UnitMember& member : members_) member.is_in_forward = false;
}

void ShardedUnit::begin_backward() {
  const bool is_recorded = is_in_forward();
  awaited_ = 0;
  for (UnitMember& member : members_) {
    member.has_arrived = is_recorded && !member.is_in_forward;
    if (!member.has_arrived) ++awaited_;
  }
}

bool ShardedUnit::count_arrival(size_t member) {
  if (awaited_ == 0) begin_backward();  // a nested backward reaches the unit again
  if (!std::exchange(members_[member].has_arrived, true)) --awaited_;
  return awaited_ == 0;
}

void ShardedUnit::before_operator(const units::GatheredParameter& parameter, bool writes) {
  const auto scheduler = scheduler_.lock();
  if (!scheduler) units::fail_without_owner(parameter.name, kMemoryErrors);
  scheduler->use(*this, parameter, writes);
}

void ShardedUnit::after_operator() noexcept {
  if (const auto scheduler = scheduler_.lock()) scheduler->release(*this);
}

}  // namespace accelerate::sharding
