// SPDX-License-Identifier: Apache-2.0
#include "accelerate/units/gather_on_use.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <span>
#include <unordered_map>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/device/absent_memory.hpp"
#include "accelerate/units/argument_devices.hpp"

// cmake/AccelerateGatherKey.cmake defines it if another key takes the place of this one.
#ifndef ACCELERATE_GATHER_KEY
#define ACCELERATE_GATHER_KEY TESTING_ONLY_GenericWrapper
#endif

namespace accelerate::units {
namespace {

// A per-tensor key that LibTorch 2.11 to 2.15 reserves and does not use. Above autograd, so a gather runs before
// autograd saves the parameter. Fake is below autograd, so a saved parameter gets its memory later, and below autocast,
// which holds a mutex of the process while it casts a parameter. Ranks that are threads would block each other there.
// Another registered fallback of this key in the process is an error when the first parameter is enabled.
constexpr auto kKey = c10::DispatchKey::ACCELERATE_GATHER_KEY;

using MemoryContext = std::shared_ptr<const GatheredParameter>;
void delete_context(void* context) { delete static_cast<MemoryContext*>(context); }

// Another thread may free a unit, and so replace its contexts, while this one reads them.
std::mutex contexts_mutex;

// What an operator does with its arguments. Depends on the schema only.
struct OperatorUse {
  bool needs_values = true;
  bool is_view = false;  // never copies
  std::vector<bool> writes{};
};

const OperatorUse& use_of(const c10::FunctionSchema& schema) {
  thread_local std::unordered_map<const c10::FunctionSchema*, OperatorUse> known;
  const auto [entry, is_new] = known.try_emplace(&schema);
  if (!is_new) return entry->second;
  entry->second.needs_values = device::needs_values(schema);
  entry->second.is_view = device::is_view(schema);
  for (const c10::Argument& argument : schema.arguments()) {
    entry->second.writes.push_back(argument.alias_info() != nullptr && argument.alias_info()->isWrite());
  }
  return entry->second;
}

MemoryContext parameter_of(c10::StorageImpl& storage) {
  const std::lock_guard lock(contexts_mutex);
  const at::DataPtr& memory = storage._mutable_data_ptr_no_checks();
  return memory.get_deleter() == &delete_context ? *static_cast<MemoryContext*>(memory.get_context()) : nullptr;
}

MemoryContext parameter_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? parameter_of(*device::storage_of(tensor)) : nullptr;
}

// Makes the memory of a parameter available. The caller must call after_operator() of the returned owner.
std::shared_ptr<GatherOnUse> acquire(const GatheredParameter& parameter, bool writes) {
  auto owner = parameter.owner.lock();
  if (!owner) fail_without_owner(parameter.name, *parameter.errors);
  owner->before_operator(parameter, writes);
  return owner;
}

// The owners of the memory that one operator uses. Each is held until the operator ended, so that the gather of one
// does not free another.
class UsedMemory {
 public:
  UsedMemory() = default;
  UsedMemory(const UsedMemory&) = delete;
  UsedMemory& operator=(const UsedMemory&) = delete;
  ~UsedMemory() {
    for (const auto& owner : owners_) owner->after_operator();
  }

  void add(const c10::IValue& value, bool writes) {
    for_each_tensor(value, [&](const at::Tensor& tensor) { add(tensor, writes); });
  }
  [[nodiscard]] std::optional<c10::Device> device() const {
    for (const auto& owner : owners_) {
      if (const auto device = owner->execution_device()) return device;
    }
    return std::nullopt;
  }
  [[nodiscard]] bool has_result() const { return has_result_; }

 private:
  void add(const at::Tensor& tensor, bool writes) {
    const MemoryContext parameter = parameter_of(tensor);
    if (!parameter) {
      has_result_ = has_result_ || device::dispatch_keys_of(tensor).has(kKey);
      return;
    }
    owners_.push_back(acquire(*parameter, writes));
  }

  c10::SmallVector<std::shared_ptr<GatherOnUse>, 4> owners_;
  bool has_result_ = false;  // a result of an earlier operator on such parameters is among the arguments
};

// Device of the last parameter with one that this thread used.
thread_local std::optional<c10::Device> last_device;

// The device of the tensor that the operator writes to, which cannot be a copy.
std::optional<c10::Device> device_of_result(std::span<const c10::IValue> arguments, const OperatorUse& use) {
  std::optional<c10::Device> found;
  for (size_t i = 0; i < arguments.size() && !found; ++i) {
    if (use.writes[i]) for_each_tensor(arguments[i], [&](const at::Tensor& tensor) { found = tensor.device(); });
  }
  return found;
}

void bring_together(std::span<c10::IValue> arguments, const OperatorUse& use, const UsedMemory& used) {
  if (const auto device = used.device()) last_device = device;
  auto device = device_for_mixed(arguments, last_device);
  if (!device) return;
  if (const auto result = device_of_result(arguments, use)) device = result;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!use.writes[i]) copy_to_device(arguments[i], *device);
  }
}

// Operators on the results run this fallback, too, so that their arguments are brought together.
void mark_results(const torch::jit::Stack& stack, size_t count) {
  for (size_t i = stack.size() - count; i < stack.size(); ++i) {
    for_each_tensor(stack[i], [](const at::Tensor& tensor) {
      device::dispatch_keys_of(tensor) = device::dispatch_keys_of(tensor).add(kKey);
    });
  }
}

void gather_before(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto rest = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  const c10::FunctionSchema& schema = op.schema();
  const OperatorUse& use = use_of(schema);
  if (use.is_view) {
    // The operators inside a view need no values either. The results still inherit the key.
    const c10::impl::ExcludeDispatchKeyGuard inside(kKey);
    return op.redispatchBoxed(rest, stack);
  }
  if (!use.needs_values) return op.redispatchBoxed(rest, stack);  // a reshape() may contain a copy, which needs them
  UsedMemory used;
  const auto arguments = std::span(*stack).last(use.writes.size());
  for (size_t i = 0; i < use.writes.size(); ++i) used.add(arguments[i], use.writes[i]);
  const bool has_device = used.has_result() || used.device();
  if (has_device) bring_together(arguments, use, used);
  {
    // Operators inside this one find the memory available. Their views still inherit the key.
    const c10::impl::ExcludeDispatchKeyGuard inside(kKey);
    op.redispatchBoxed(rest, stack);
  }
  if (has_device) mark_results(*stack, schema.returns().size());
}

// At the first use, because a process may load several copies of this library, of which one may use the key.
void register_fallback(const MemoryErrors& errors) {
  static const auto registered = [&] {
    try {
      auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
      library->fallback(torch::CppFunction::makeFromBoxedFunction<&gather_before>());
      return library;
    } catch (const c10::Error& error) {
      base::fail(ErrorKind::environment, {}, errors.operation,
                 "another library in this process uses the dispatch key {}, by which operators gather parameters: {}; "
                 "link one copy of this library, or {}",
                 c10::toString(kKey), error.what_without_backtrace(), errors.key_in_use);
    }
  }();
}

void replace_memory(const at::Tensor& parameter, at::DataPtr memory) {
  auto* storage = device::storage_of(parameter);
  const std::lock_guard lock(contexts_mutex);
  device::refuse_data(*storage, false);
  storage->set_data_ptr_noswap(std::move(memory));
}

}  // namespace

void enable_gather_on_use(const at::Tensor& parameter, const MemoryErrors& errors) {
  register_fallback(errors);
  device::dispatch_keys_of(parameter) = device::dispatch_keys_of(parameter).add(kKey);
}

void disable_gather_on_use(const at::Tensor& parameter) {
  device::dispatch_keys_of(parameter) = device::dispatch_keys_of(parameter).remove(kKey);
}

void set_storage_memory(const c10::Storage& storage, void* memory, std::shared_ptr<const GatheredParameter> parameter) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  const bool is_absent = memory == nullptr && impl->nbytes() > 0;
  if (parameter_of(*impl) != parameter) set_absence_text(storage, *parameter);
  const std::lock_guard lock(contexts_mutex);
  at::DataPtr& current = impl->_mutable_data_ptr_no_checks();
  std::unique_ptr<MemoryContext> context;  // the same one again, because this runs for each parameter of each gather
  if (current.get_deleter() == &delete_context) context.reset(static_cast<MemoryContext*>(current.release_context()));
  if (!context) context = std::make_unique<MemoryContext>();
  if (*context != parameter) *context = std::move(parameter);
  device::refuse_data(*impl, is_absent);
  impl->set_data_ptr_noswap({memory, context.release(), &delete_context, impl->device()});
}

void set_absence_text(const c10::Storage& storage, const GatheredParameter& parameter) {
  storage.unsafeGetStorageImpl()->get_extra_meta().custom_data_ptr_error_msg_ =
      fmt::format("parameter {} {}", parameter.name, parameter.errors->absent);
}

HeldMemory::HeldMemory(at::TensorList tensors) {
  for (const at::Tensor& tensor : tensors) {
    const MemoryContext parameter = tensor.defined() ? parameter_of(tensor) : nullptr;
    if (!parameter) continue;
    owners_.emplace_back(nullptr, [owner = acquire(*parameter, /*writes=*/false)](void*) { owner->after_operator(); });
  }
}

void own_parameter_memory(const at::Tensor& parameter, const at::Tensor& values) {
  replace_memory(parameter, device::storage_of(values)->set_data_ptr({nullptr, values.device()}));
}

void share_parameter_memory(const at::Tensor& parameter, const at::Tensor& flat, int64_t offset) {
  void* memory = static_cast<char*>(flat.mutable_data_ptr()) + offset * flat.element_size();
  const auto release = [](void* storage) { delete static_cast<c10::Storage*>(storage); };
  replace_memory(parameter, {memory, new c10::Storage(flat.storage()), release, flat.device()});
}

void fail_without_owner(const std::string& name, const MemoryErrors& errors) {
  base::fail(ErrorKind::usage, {}, errors.operation, "parameter {} {}", name, errors.without_owner);
}

bool fills_its_storage(const at::Tensor& parameter) {
  return parameter.storage_offset() == 0 && device::storage_of(parameter)->nbytes() == parameter.nbytes();
}

bool has_memory_owner(const at::Tensor& tensor) { return tensor.defined() && parameter_of(tensor) != nullptr; }

bool is_offloaded(const at::Tensor& tensor) {
  const auto parameter = tensor.defined() ? parameter_of(tensor) : nullptr;
  const auto owner = parameter ? parameter->owner.lock() : nullptr;
  return owner && owner->refuses_writes();
}

}  // namespace accelerate::units
