// SPDX-License-Identifier: Apache-2.0
#include "accelerate/deferred/deferred_tensor.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/deferred/deferred_memory.hpp"
#include "accelerate/deferred/operator_rules.hpp"
#include "accelerate/deferred/random_draw.hpp"
#include "accelerate/device/absent_memory.hpp"

namespace accelerate::deferred {
namespace {

// LibTorch 2.11 to 2.15 reserve this key for torchdistx and do not use it. Above autograd.
constexpr auto kKey = c10::DispatchKey::DeferredInit;

using torch::jit::Stack;

// While a deferred tensor is copied by an operator that calls empty() and copy_(). Only such copies are deferred on
// other devices than the CPU.
thread_local bool is_copying = false;

Stack arguments_of(const c10::OperatorHandle& op, const Stack& stack) {
  return Stack(stack.end() - static_cast<int64_t>(op.schema().arguments().size()), stack.end());
}

void replace_arguments(const c10::OperatorHandle& op, Stack& stack, at::Tensor result) {
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(std::move(result));
}

/// \param keys  Of the call; without autograd's keys inside of autograd's own functions.
bool is_recorded_by_autograd(const at::Tensor& tensor, c10::DispatchKeySet keys) {
  return at::GradMode::is_enabled() && tensor.requires_grad() && keys.has_any(c10::autograd_dispatch_keyset);
}

std::optional<c10::IValue> copy_of_number(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.dim() > 0 || !tensor.is_cpu() || tensor.requires_grad() ||
      deferred_memory_of(tensor)) {
    return std::nullopt;
  }
  at::Tensor number = tensor.clone();
  number.unsafeGetTensorImpl()->set_wrapped_number(tensor.unsafeGetTensorImpl()->is_wrapped_number());
  return number;
}

// The arguments behind the first one must be numbers, or a deferred tensor to copy from. Numbers that are tensors are
// copied, because they may change later.
bool record_arguments(RecordedOperator& recorded, const Stack& arguments, c10::DispatchKeySet keys) {
  for (size_t i = 1; i < arguments.size(); ++i) {
    const c10::IValue& value = arguments[i];
    if (value.isTensorList() || value.isOptionalTensorList()) return false;
    if (!value.isTensor()) {
      recorded.rest.push_back(value);
      continue;
    }
    const auto memory = deferred_memory_of(value.toTensor());
    if (memory && memory->is_absent() && is_fill_from_tensor(recorded.op)) {
      if (is_recorded_by_autograd(value.toTensor(), keys)) return false;
      recorded.source = {memory->snapshot(), Geometry::of(value.toTensor())};
      recorded.rest.emplace_back();
      continue;
    }
    auto number = copy_of_number(value.toTensor());
    if (!number) return false;
    recorded.rest.push_back(std::move(*number));
  }
  return true;
}

// A fill is recorded at any time, because the recipe does not grow.
bool record_in_place(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack& stack, bool deferring) {
  const auto change = change_by(op);
  if (change == Change::unknown || (!deferring && change != Change::fills)) return false;
  const Stack arguments = arguments_of(op, stack);
  const at::Tensor& target = arguments[0].toTensor();
  const auto memory = deferred_memory_of(target);
  if (!memory || memory->is_final() || is_recorded_by_autograd(target, keys)) return false;
  const c10::impl::ExcludeDispatchKeyGuard inside(kKey);
  RecordedOperator recorded{.op = op, .target = Geometry::of(target)};
  const bool replaces_all = change == Change::fills && recorded.target.fills(memory->bytes());
  if (!replaces_all && (!deferring || !memory->is_absent())) return false;
  if (!record_arguments(recorded, arguments, keys)) return false;
  if (is_random(op) && (!target.is_cpu() || !draw(recorded, arguments))) return false;
  if (!memory->add(*device::storage_of(target), std::move(recorded), replaces_all)) return false;
  if (!target.is_inference()) target.unsafeGetTensorImpl()->bump_version();
  replace_arguments(op, stack, target);
  return true;
}

// The result of arithmetic is a copy that an operator changes in place.
bool record_arithmetic(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack& stack) {
  Stack arguments = arguments_of(op, stack);
  if (arguments.empty() || !arguments[0].isTensor() || !is_deferred(arguments[0].toTensor())) return false;
  const at::Tensor source = arguments[0].toTensor();
  if (is_recorded_by_autograd(source, keys) || !Geometry::of(source).fills(deferred_memory_of(source)->bytes()))
    return false;
  const auto in_place = in_place_arithmetic(op, arguments);
  if (!in_place) return false;
  if (arguments[1].isTensor() && is_recorded_by_autograd(arguments[1].toTensor(), keys)) return false;
  const at::NoGradGuard no_grad;
  arguments[0] = source.clone();
  in_place->callBoxed(&arguments);
  replace_arguments(op, stack, arguments.front().toTensor());
  return true;
}

// attach() gives the tensor memory.
at::Tensor without_memory(const EmptyLayout& layout) {
  at::OptionalIntArrayRef strides;
  if (layout.strides) strides = *layout.strides;
  at::Tensor tensor =
      device::empty_without_memory(layout.sizes, strides, layout.dtype, layout.device, layout.memory_format);
  device::storage_of(tensor)->set_allocator(c10::GetAllocator(layout.device.type()));
  return tensor;
}

bool create(const c10::OperatorHandle& op, Stack& stack) {
  const auto layout = layout_of_empty(op, arguments_of(op, stack));
  if (!layout || (!layout->device.is_cpu() && (!is_copying || layout->device.is_meta()))) return false;
  at::Tensor tensor = without_memory(*layout);
  c10::StorageImpl& storage = *device::storage_of(tensor);
  if (storage.nbytes() == 0) return false;
  attach(storage, layout->device.is_cpu()
                      ? DeferredMemory::untouched(storage.nbytes())
                      : std::make_shared<DeferredMemory>(ValueRecipe(storage.nbytes(), storage.device())));
  device::dispatch_keys_of(tensor) = device::dispatch_keys_of(tensor).add(kKey);
  replace_arguments(op, stack, std::move(tensor));
  return true;
}

// Autograd and the operators inside are those of an ordinary copy, and the copy is deferred, too.
bool copy_deferred(const c10::OperatorHandle& op, c10::DispatchKeySet rest, Stack& stack) {
  if (!is_copy(op) || !is_deferred(arguments_of(op, stack)[0].toTensor())) return false;
  const c10::impl::IncludeDispatchKeyGuard deferring(kKey);
  const bool before = std::exchange(is_copying, true);
  try {
    op.redispatchBoxed(rest, &stack);
  } catch (...) {
    is_copying = before;
    throw;
  }
  is_copying = before;
  return true;
}

void materialize_arguments(const Stack& arguments) {
  for (const c10::IValue& value : arguments) {
    if (value.isTensor()) {
      materialize_storage(value.toTensor());
    } else if (value.isList()) {
      for (const c10::IValue& element : value.toListRef()) {
        if (element.isTensor()) materialize_storage(element.toTensor());
      }
    }
  }
}

void before_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const bool deferring = c10::impl::tls_is_dispatch_key_included(kKey);
  const auto rest = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  if (deferring && create(op, *stack)) return;
  if (record_in_place(op, keys, *stack, deferring) || copy_deferred(op, rest, *stack)) return;
  if (deferring && record_arithmetic(op, keys, *stack)) return;
  // Operators inside these are dispatched to this fallback.
  if (!device::needs_values(op.schema()) || consists_of_deferrable(op)) return op.redispatchBoxed(rest, stack);
  const c10::impl::ExcludeDispatchKeyGuard inside(kKey);
  materialize_arguments(arguments_of(op, *stack));
  op.redispatchBoxed(rest, stack);
}

// At the first use, because a process may load several copies of this library.
void register_fallback() {
  static const auto registered = [] {
    try {
      auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
      library->fallback(torch::CppFunction::makeFromBoxedFunction<&before_operator>());
      return library;
    } catch (const c10::Error& error) {
      base::fail(ErrorKind::environment, {}, "init_empty_weights",
                 "another library in this process uses the dispatch key {}, by which fills are recorded: {}; link one "
                 "copy of this library, or build the module without init_empty_weights()",
                 c10::toString(kKey), error.what_without_backtrace());
    }
  }();
}

}  // namespace

bool set_deferring(bool deferring) {
  register_fallback();
  const bool before = is_deferring();
  c10::impl::tls_set_dispatch_key_included(kKey, deferring);
  return before;
}

bool is_deferring() { return c10::impl::tls_is_dispatch_key_included(kKey); }

void materialize_tensor(const at::Tensor& tensor) {
  if (!tensor.defined() || !device::dispatch_keys_of(tensor).has(kKey)) return;
  const c10::impl::ExcludeDispatchKeyGuard inside(kKey);
  materialize_storage(tensor);
  if (const auto pages = deferred_memory_of(tensor)) pages->finish();
  device::dispatch_keys_of(tensor) = device::dispatch_keys_of(tensor).remove(kKey);
}

bool is_deferred(const at::Tensor& tensor) {
  const auto memory = deferred_memory_of(tensor);
  return memory != nullptr && memory->is_absent();
}

}  // namespace accelerate::deferred
