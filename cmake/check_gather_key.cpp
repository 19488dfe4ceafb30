// SPDX-License-Identifier: Apache-2.0
// Compiled and run by AccelerateGatherKey.cmake: a parameter without memory gets it from the fallback of a dispatch key
// when an operator needs its values, as accelerate/units/gather_on_use.cpp relies on. Returns 0 if that works with this
// LibTorch, otherwise prints what does not.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <cstdio>
#include <exception>
#include <utility>
#include <vector>

#include "accelerate/device/absent_memory.cpp"  // NOLINT(bugprone-suspicious-include): one program of one file

namespace {

using accelerate::device::dispatch_keys_of;
using accelerate::device::refuse_data;
using accelerate::device::storage_of;

constexpr auto kKey = c10::DispatchKey::ACCELERATE_GATHER_KEY;

std::vector<float> values;
at::Tensor parameter;
int calls = 0, gathers = 0;

void set_memory(void* memory) {
  c10::StorageImpl* storage = storage_of(parameter);
  refuse_data(*storage, memory == nullptr);
  storage->set_data_ptr_noswap({memory, storage->device()});
}

void gather_before(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  ++calls;
  if (accelerate::device::needs_values(op.schema())) {
    ++gathers;
    set_memory(values.data());
  }
  const c10::impl::ExcludeDispatchKeyGuard inside(kKey);
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

bool refuses_data(const at::Tensor& tensor) {
  try {
    (void)tensor.const_data_ptr();
    return false;
  } catch (const c10::Error&) {
    return true;
  }
}

// Returns what does not work, or null.
const char* problem() {
  parameter = at::arange(6, at::kFloat).reshape({2, 3}).clone();
  values.assign(parameter.const_data_ptr<float>(), parameter.const_data_ptr<float>() + 6);
  parameter.set_requires_grad(true);
  const at::Tensor x = at::ones({1, 3}).set_requires_grad(true);
  (void)x.matmul(parameter.t());
  if (calls != 0) return "operators on a tensor without the key call the fallback";
  dispatch_keys_of(parameter) = dispatch_keys_of(parameter).add(kKey);

  set_memory(nullptr);
  if (!refuses_data(parameter)) return "a storage does not refuse access to absent memory";
  const at::Tensor view = parameter.t();
  if (calls == 0) return "an operator on a parameter with the key does not call the fallback";
  if (!dispatch_keys_of(view).has(kKey)) return "a view of a parameter does not inherit the key";
  if (gathers != 0 || !refuses_data(parameter)) return "a view needs values";

  const at::Tensor y = x.matmul(view);
  if (gathers == 0 || refuses_data(parameter)) return "an operator on a view does not call the fallback";
  if (!y.equal(at::arange(3, 13, 9, at::kFloat).reshape({1, 2}))) return "the result of the forward is wrong";
  set_memory(nullptr);
  gathers = 0;
  y.sum().backward();
  if (gathers == 0) return "an operator of the backward does not call the fallback";
  if (!x.grad().equal(at::arange(3, 8, 2, at::kFloat).reshape({1, 3}))) return "the gradient of the input is wrong";
  if (!parameter.grad().equal(at::ones({2, 3}))) return "the gradient of the parameter is wrong";
  set_memory(values.data());
  dispatch_keys_of(parameter) = dispatch_keys_of(parameter).remove(kKey);
  calls = 0;
  if (parameter.sum().item<float>() != 15 || calls != 0)
    return "a parameter from which the key was removed has no memory";
  return nullptr;
}

}  // namespace

int main() {
  try {
    torch::Library library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&gather_before>());
    const char* const text = problem();
    if (text != nullptr) std::puts(text);
    return text == nullptr ? 0 : 1;
  } catch (const c10::Error& error) {
    std::puts(error.what_without_backtrace());
    return 2;
  } catch (const std::exception& error) {
    std::puts(error.what());
    return 2;
  }
}
