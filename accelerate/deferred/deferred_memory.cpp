// SPDX-License-Identifier: Apache-2.0
#include "accelerate/deferred/deferred_memory.hpp"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "accelerate/device/absent_memory.hpp"

namespace accelerate::deferred {
namespace {

using Context = std::shared_ptr<DeferredMemory>;
void delete_context(void* context) { delete static_cast<Context*>(context); }

// Another thread may materialize a storage, and so delete its context, while this one reads it.
std::mutex contexts_mutex;

constexpr auto kNoMemory =
    "the tensor has no memory yet, because init_empty_weights() built it; before data_ptr() and torch::save(), call "
    "accelerate::materialize() of the module or the tensor";

void set_memory(c10::StorageImpl& storage, at::DataPtr memory, bool is_absent) {
  const std::lock_guard lock(contexts_mutex);
  device::refuse_data(storage, is_absent);
  storage.set_data_ptr_noswap(std::move(memory));
}

}  // namespace

std::shared_ptr<DeferredMemory> DeferredMemory::untouched(size_t bytes) {
  auto memory = std::make_shared<DeferredMemory>(ValueRecipe(bytes, c10::Device(c10::kCPU)));
  memory->pages_.emplace(bytes);
  return memory;
}

void* DeferredMemory::address() const { return pages_ ? pages_->address() : nullptr; }

bool DeferredMemory::is_absent() const {
  const std::lock_guard lock(mutex_);
  return !pages_ && !is_final_;
}

bool DeferredMemory::is_final() const {
  const std::lock_guard lock(mutex_);
  return is_final_;
}

std::shared_ptr<const ValueRecipe> DeferredMemory::snapshot() const {
  const std::lock_guard lock(mutex_);
  return std::make_shared<const ValueRecipe>(recipe_);
}

bool DeferredMemory::add(c10::StorageImpl& storage, RecordedOperator next, bool replaces_all) {
  const std::lock_guard lock(mutex_);
  if (is_final_) return false;
  recipe_.add(std::move(next), replaces_all);
  if (!pages_) return true;
  storage.get_extra_meta().custom_data_ptr_error_msg_ = kNoMemory;
  set_memory(storage, {nullptr, new Context(shared_from_this()), &delete_context, storage.device()},
             /*is_absent=*/true);
  pages_.reset();
  return true;
}

void DeferredMemory::finish() {
  const std::lock_guard lock(mutex_);
  is_final_ = true;
}

void DeferredMemory::materialize(c10::StorageImpl& storage) {
  const std::lock_guard lock(mutex_);
  if (pages_ || is_final_) return;
  const at::NoGradGuard no_grad;
  const c10::Storage values = recipe_.build();
  is_final_ = true;
  set_memory(storage, values.set_data_ptr({nullptr, storage.device()}), /*is_absent=*/false);
}

void attach(c10::StorageImpl& storage, std::shared_ptr<DeferredMemory> memory) {
  void* address = memory->address();
  const bool is_absent = memory->is_absent();
  if (is_absent) storage.get_extra_meta().custom_data_ptr_error_msg_ = kNoMemory;
  set_memory(storage, {address, new Context(std::move(memory)), &delete_context, storage.device()}, is_absent);
}

std::shared_ptr<DeferredMemory> deferred_memory_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  const std::lock_guard lock(contexts_mutex);
  const at::DataPtr& memory = device::storage_of(tensor)->_mutable_data_ptr_no_checks();
  return memory.get_deleter() == &delete_context ? *static_cast<Context*>(memory.get_context()) : nullptr;
}

void materialize_storage(const at::Tensor& tensor) {
  if (const auto memory = deferred_memory_of(tensor)) memory->materialize(*device::storage_of(tensor));
}

}  // namespace accelerate::deferred
