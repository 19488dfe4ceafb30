// SPDX-License-Identifier: Apache-2.0
#include "accelerate/deferred/deferred_memory.hpp"

#include <ATen/core/grad_mode.h>
#include <sys/mman.h>

#include <new>
#include <utility>

#include "accelerate/device/absent_memory.hpp"

namespace accelerate::deferred {
namespace {

using Context = std::shared_ptr<DeferredMemory>;
void delete_context(void* context) { delete static_cast<Context*>(context); }

// Another thread may materialize a storage, and so delete its context, while this one reads it.
std::mutex contexts_mutex;

constexpr auto kNoMemory =
    "the tensor has no memory yet, because init_empty_weights() built it; call accelerate::materialize(module) before "
    "data_ptr() and torch::save()";

struct NoAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t) override { return {nullptr, c10::Device(c10::kCPU)}; }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {}
};

void set_memory(c10::StorageImpl& storage, at::DataPtr memory, bool is_absent) {
  const std::lock_guard lock(contexts_mutex);
  device::refuse_data(storage, is_absent);
  storage.set_data_ptr_noswap(std::move(memory));
}

}  // namespace

std::shared_ptr<DeferredMemory> DeferredMemory::untouched(size_t bytes) {
  auto memory = std::make_shared<DeferredMemory>(ValueRecipe(bytes));
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  memory->pages_ = pages;
  return memory;
}

DeferredMemory::~DeferredMemory() { release_pages(); }

void DeferredMemory::release_pages() {
  if (pages_ != nullptr) munmap(std::exchange(pages_, nullptr), bytes());
}

bool DeferredMemory::is_absent() const {
  const std::lock_guard lock(mutex_);
  return pages_ == nullptr && !is_done_;
}

std::shared_ptr<const ValueRecipe> DeferredMemory::snapshot() const {
  const std::lock_guard lock(mutex_);
  return std::make_shared<const ValueRecipe>(recipe_);
}

void DeferredMemory::add(c10::StorageImpl& storage, RecordedOperator next, bool replaces_all) {
  const std::lock_guard lock(mutex_);
  recipe_.add(std::move(next), replaces_all);
  if (pages_ == nullptr) return;
  storage.get_extra_meta().custom_data_ptr_error_msg_ = kNoMemory;
  set_memory(storage, {nullptr, new Context(shared_from_this()), &delete_context, storage.device()},
             /*is_absent=*/true);
  release_pages();
}

void DeferredMemory::materialize(c10::StorageImpl& storage) {
  const std::lock_guard lock(mutex_);
  if (pages_ != nullptr || is_done_) return;
  const at::NoGradGuard no_grad;
  const c10::Storage values = recipe_.build();
  is_done_ = true;
  set_memory(storage, values.set_data_ptr({nullptr, storage.device()}), /*is_absent=*/false);
}

void attach(c10::StorageImpl& storage, std::shared_ptr<DeferredMemory> memory) {
  void* address = memory->address();
  const bool is_absent = memory->is_absent();
  if (is_absent) storage.get_extra_meta().custom_data_ptr_error_msg_ = kNoMemory;
  set_memory(storage, {address, new Context(std::move(memory)), &delete_context, storage.device()}, is_absent);
}

std::shared_ptr<DeferredMemory> memory_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  const std::lock_guard lock(contexts_mutex);
  const at::DataPtr& memory = device::storage_of(tensor)->_mutable_data_ptr_no_checks();
  return memory.get_deleter() == &delete_context ? *static_cast<Context*>(memory.get_context()) : nullptr;
}

void materialize_storage(const at::Tensor& tensor) {
  if (const auto memory = memory_of(tensor)) memory->materialize(*device::storage_of(tensor));
}

c10::Allocator* no_allocator() {
  static NoAllocator allocator;
  return &allocator;
}

}  // namespace accelerate::deferred
