// SPDX-License-Identifier: Apache-2.0
#include "accelerate/deferred/deferred_tensor.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/deferred/deferred_memory.hpp"
#include "accelerate/deferred/operator_rules.hpp"
#include "accelerate/device/absent_memory.hpp"

namespace accelerate::deferred {
namespace {

// LibTorch 2.11 to 2.15 reserve this key for torchdistx and do not use it. Above autograd.
constexpr auto kKey = c10::DispatchKey::DeferredInit;

using torch::jit::Stack;

Stack arguments_of(const c10::OperatorHandle& op, const Stack& stack) {
  return Stack(stack.end() - static_cast<int64_t>(op.schema().arguments().size()), stack.end());
}

void replace_arguments(const c10::OperatorHandle& op, Stack& stack, at::Tensor result) {
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(std::move(result));
}

bool is_recorded_by_autograd(const at::Tensor& tensor) { return at::GradMode::is_enabled() && tensor.requires_grad(); }

// Arguments behind the first one. Numbers that are tensors are copied, because they may change later.
std::optional<std::vector<c10::IValue>> recordable_rest(const Stack& arguments) {
  std::vector<c10::IValue> rest;
  for (size_t i = 1; i < arguments.size(); ++i) {
    const c10::IValue& value = arguments[i];
    if (value.isTensorList() || value.isOptionalTensorList()) return std::nullopt;
    if (!value.isTensor()) {
      rest.push_back(value);
      continue;
    }
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined() || tensor.dim() > 0 || !tensor.is_cpu() || tensor.requires_grad() || memory_of(tensor)) {
      return std::nullopt;
    }
    at::Tensor number = tensor.clone();
    number.unsafeGetTensorImpl()->set_wrapped_number(tensor.unsafeGetTensorImpl()->is_wrapped_number());
    rest.emplace_back(std::move(number));
  }
  return rest;
}

// Records the state of the generator, and draws the numbers of the operator, so that the next operator draws others.
// Returns false if the operator does not draw from a CPU generator.
bool draw(RecordedOperator& recorded, Stack arguments) {
  const auto index = recorded.op.schema().argumentIndexWithName("generator");
  if (!index) return false;
  const c10::IValue& given = arguments[static_cast<size_t>(*index)];
  at::Generator generator = given.isNone() ? at::detail::getDefaultCPUGenerator() : given.toGenerator();
  if (generator.device().type() != at::kCPU) return false;
  {
    const std::lock_guard lock(generator.mutex());
    recorded.generator_state = generator.get_state();
  }
  recorded.generator_argument = *index;
  arguments[0] = recorded.first.allocate();
  recorded.op.callBoxed(&arguments);
  return true;
}

bool record_in_place(const c10::OperatorHandle& op, Stack& stack) {
  const auto change = change_by(op);
  if (change == Change::unknown) return false;
  const Stack arguments = arguments_of(op, stack);
  const at::Tensor& target = arguments[0].toTensor();
  const auto memory = memory_of(target);
  if (!memory || is_recorded_by_autograd(target)) return false;
  const c10::impl::ExcludeDispatchKeyGuard inside(kKey);
  RecordedOperator recorded{.op = op, .first = Geometry::of(target)};
  const bool replaces_all = change == Change::fills && recorded.first.fills(memory->bytes());
  if (!replaces_all && !memory->is_absent()) return false;
  auto rest = recordable_rest(arguments);
  if (!rest) return false;
  recorded.rest = std::move(*rest);
  if (is_random(op) && !draw(recorded, arguments)) return false;
  memory->add(*device::storage_of(target), std::move(recorded), replaces_all);
  if (!target.is_inference()) target.unsafeGetTensorImpl()->bump_version();
  replace_arguments(op, stack, target);
  return true;
}

at::Tensor with_memory(at::Tensor tensor, std::shared_ptr<DeferredMemory> memory) {
  c10::StorageImpl& storage = *device::storage_of(tensor);
  storage.set_allocator(c10::GetCPUAllocator());
  attach(storage, std::move(memory));
  device::dispatch_keys_of(tensor) = device::dispatch_keys_of(tensor).add(kKey);
  return tensor;
}

// clone(), to(dtype) and arithmetic with a number give a tensor with the sizes and strides of their first argument.
bool record_copy(const c10::OperatorHandle& op, Stack& stack, bool deferring) {
  if (!is_elementwise_copy(op, deferring)) return false;
  const Stack arguments = arguments_of(op, stack);
  const at::Tensor& source = arguments[0].toTensor();
  const auto memory = memory_of(source);
  if (!memory || !memory->is_absent() || is_recorded_by_autograd(source)) return false;
  const auto dtype = dtype_of_copy(op, arguments);
  if (!dtype) return false;
  const c10::impl::ExcludeDispatchKeyGuard inside(kKey);
  RecordedOperator recorded{.op = op, .first = Geometry::of(source)};
  auto rest = recordable_rest(arguments);
  if (!rest || !recorded.first.fills(memory->bytes())) return false;
  recorded.rest = std::move(*rest);
  at::Tensor copy(at::detail::empty_strided_generic(source.sizes(), source.strides(), no_allocator(),
                                                    c10::DispatchKeySet(c10::DispatchKey::CPU), *dtype));
  auto recipe = ValueRecipe(copy.nbytes(), memory->snapshot(), std::move(recorded));
  replace_arguments(op, stack, with_memory(std::move(copy), std::make_shared<DeferredMemory>(std::move(recipe))));
  return true;
}

bool create(const c10::OperatorHandle& op, Stack& stack) {
  const auto layout = layout_of_empty(op, arguments_of(op, stack));
  if (!layout) return false;
  const c10::DispatchKeySet keys(c10::DispatchKey::CPU);
  at::Tensor tensor = layout->strides ? at::Tensor(at::detail::empty_strided_generic(
                                            layout->sizes, *layout->strides, no_allocator(), keys, layout->dtype))
                                      : at::Tensor(at::detail::empty_generic(layout->sizes, no_allocator(), keys,
                                                                             layout->dtype, layout->memory_format));
  const size_t bytes = device::storage_of(tensor)->nbytes();
  if (bytes == 0) return false;
  replace_arguments(op, stack, with_memory(std::move(tensor), DeferredMemory::untouched(bytes)));
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
  if (deferring && (create(op, *stack) || record_in_place(op, *stack))) return;
  if (record_copy(op, *stack, deferring)) return;
  // The operators inside these pass this function themselves.
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
  const bool before = c10::impl::tls_is_dispatch_key_included(kKey);
  c10::impl::tls_set_dispatch_key_included(kKey, deferring);
  return before;
}

void materialize_tensor(const at::Tensor& tensor) {
  if (!tensor.defined() || !device::dispatch_keys_of(tensor).has(kKey)) return;
  const c10::impl::ExcludeDispatchKeyGuard inside(kKey);
  materialize_storage(tensor);
  device::dispatch_keys_of(tensor) = device::dispatch_keys_of(tensor).remove(kKey);
}

bool is_deferred(const at::Tensor& tensor) {
  const auto memory = tensor.defined() ? memory_of(tensor) : nullptr;
  return memory != nullptr && memory->is_absent();
}

}  // namespace accelerate::deferred
