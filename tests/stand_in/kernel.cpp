// SPDX-License-Identifier: Apache-2.0
#include "tests/stand_in/kernel.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <utility>

#include "tests/stand_in/generator.hpp"
#include "tests/stand_in/graph.hpp"
#include "tests/stand_in/shapes.hpp"
#include "tests/stand_in/world.hpp"

namespace stand_in {
namespace {

using torch::jit::Stack;

const c10::DispatchKeySet kOnCpu(c10::DispatchKey::CPU);

/// Fills the results' new tensors with the output of the CPU kernel.
void fill(const std::vector<at::Tensor>& targets, const c10::IValue& result) {
  if (targets.empty()) return;
  if (result.isTensor()) {
    if (targets[0].defined()) targets[0].copy_(result.toTensor());
    return;
  }
  const auto list = result.toTensorVector();
  for (size_t i = 0; i < targets.size(); ++i) targets[i].copy_(list[i]);
}

bool is_tensor_or_list(const c10::Type& type) {
  return type.kind() == c10::TypeKind::TensorType ||
         (type.kind() == c10::TypeKind::ListType && type.containedType(0)->kind() == c10::TypeKind::TensorType);
}

}  // namespace

Call::Call(const c10::OperatorHandle& op, Stack& stack)
    : op_(op), schema_(op.schema()), name_(toString(schema_.operator_name())), stack_(stack) {
  const auto count = static_cast<std::ptrdiff_t>(schema_.arguments().size());
  arguments_.assign(stack.end() - count, stack.end());
  cpu_ = arguments_;
  meta_ = arguments_;
  targets_.resize(schema_.returns().size());
}

void Call::run() {
  take_arguments();
  refuse_mixed_devices();
  if (!device_) device_ = c10::Device(kType, current_device());
  take_generator();
  inspect_results();
  const c10::DeviceGuard guard(*device_);
  std::optional<Stack> shapes;
  if (later_) shapes = shapes_of(op_, name_, meta_);
  if (shapes) {
    run_later(*shapes);
  } else {
    run_now();
  }
}

void Call::take_arguments() {
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const auto& argument = schema_.arguments()[i];
    const auto* alias = argument.alias_info();
    const bool write = (alias != nullptr && alias->isWrite()) || writes_silently(name_, i);
    if (arguments_[i].isTensor()) {
      at::Tensor for_meta;
      if (argument.is_out()) outs_.push_back(i);
      cpu_[i] = take(arguments_[i].toTensor(), write, argument.is_out(), for_meta);
      meta_[i] = for_meta;
    } else if (arguments_[i].isTensorList() || arguments_[i].isOptionalTensorList()) {
      take_lists(i, write);
    } else if (arguments_[i].isDevice()) {
      device_ = arguments_[i].toDevice();
      cpu_[i] = c10::Device(c10::kCPU);
      meta_[i] = c10::Device(c10::kMeta);
    }
  }
}

void Call::take_lists(size_t i, bool write) {
  if (arguments_[i].isTensorList()) {
    Tensors list;
    Tensors metas;
    for (const at::Tensor& tensor : arguments_[i].toTensorVector()) {
      list.push_back(take(tensor, write, false, metas.emplace_back()));
    }
    cpu_[i] = list;
    meta_[i] = metas;
    return;
  }
  c10::List<std::optional<at::Tensor>> list;
  c10::List<std::optional<at::Tensor>> metas;
  for (const std::optional<at::Tensor>& tensor : arguments_[i].toOptionalTensorVector()) {
    at::Tensor for_meta;
    list.push_back(tensor ? std::optional(take(*tensor, write, false, for_meta)) : std::nullopt);
    metas.push_back(tensor ? std::optional(for_meta) : std::nullopt);
  }
  cpu_[i] = list;
  meta_[i] = metas;
}

at::Tensor Call::take(const at::Tensor& tensor, bool write, bool out, at::Tensor& for_meta) {
  if (!tensor.defined()) return tensor;
  if (!is_ours(tensor)) {
    // Scalars and indices may be on the host, as with CUDA.
    const bool could_be_launcher_message =
        tensor.is_cpu() && (tensor.dim() == 0 || name_.find("index") != std::string::npos);
    if (!could_be_launcher_message) stranger_ = tensor.device();
    // clone() drops the wrapped-number flag, which affects type promotion.
    const bool wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
    return for_meta = wrapped ? tensor : tensor.clone();
  }
  if (device_ && *device_ != tensor.device()) stranger_ = tensor.device();
  if (!device_) device_ = tensor.device();
  for_meta = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta));
  if (out) return tensor;  // its shape is still unknown
  touch(touches_, tensor, write);
  return as_cpu(tensor);
}

void Call::refuse_mixed_devices() const {
  TORCH_CHECK(!device_ || !stranger_, "Expected all tensors to be on the same device, but found at least two devices, ",
              *device_, " and ", *stranger_, "! (operator ", name_, ")");
}

void Call::take_generator() {
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (schema_.arguments()[i].name() != "generator") continue;
    const auto& given = arguments_[i];
    cpu_[i] = host_generator(given.isGenerator() ? given.toGenerator() : default_generator(device_->index()));
    later_ = false;
  }
}

void Call::inspect_results() {
  const auto& returns = schema_.returns();
  alias_.assign(returns.size(), -1);
  host_result_ = op_.hasTag(at::Tag::dynamic_output_shape);
  for (size_t r = 0; r < returns.size(); ++r) {
    const auto* info = returns[r].alias_info();
    if (info == nullptr) {
      host_result_ |= !is_tensor_or_list(*returns[r].type());
      continue;
    }
    TORCH_CHECK(info->isWrite(), name_, ": the stand-in lacks this view operator");
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const auto* of = schema_.arguments()[i].alias_info();
      if (of != nullptr && *of == *info) alias_[r] = static_cast<int64_t>(i);
    }
  }
  later_ = later_ && !host_result_;
}

at::Tensor Call::place(size_t result, const at::Tensor& like) {
  if (!like.defined()) return targets_[result].emplace_back();
  auto made = make(like.sizes(), like.strides(), like.scalar_type(), device_->index());
  touch(touches_, made, true);
  targets_[result].push_back(as_cpu(made));
  return made;
}

c10::IValue Call::place(size_t result, const c10::IValue& like) {
  if (alias_[result] >= 0) return arguments_[static_cast<size_t>(alias_[result])];
  if (like.isTensor()) return place(result, like.toTensor());
  if (!like.isTensorList()) return like;
  Tensors list;
  for (const at::Tensor& tensor : like.toTensorVector()) list.push_back(place(result, tensor));
  return list;
}

void Call::run_later(const Stack& shapes) {
  for (const size_t i : outs_) {  // they have the right shape when the job runs: no kernel resizes device memory
    const auto& out = arguments_[i].toTensor();
    const auto& shape = meta_[i].toTensor();
    if (out.sizes() != shape.sizes()) out.resize_(shape.sizes());
    touch(touches_, out, true);
    cpu_[i] = as_cpu(out);
  }
  Stack results;
  for (size_t r = 0; r < targets_.size(); ++r) results.push_back(place(r, alias_[r] >= 0 ? c10::IValue() : shapes[r]));
  launch(current_stream(device_->index()), name_, touches_, [op = op_, cpu = std::move(cpu_), targets = targets_] {
    auto stack = cpu;  // several out arguments are returned as references and need this second owner
    op.redispatchBoxed(kOnCpu, &stack);
    for (size_t r = 0; r < targets.size(); ++r) fill(targets[r], stack[r]);
  });
  torch::jit::drop(stack_, arguments_.size());
  for (auto& result : results) stack_.push_back(std::move(result));
}

void Call::run_now() {
  const auto stream = current_stream(device_->index());
  refuse_while_recording(name_, stream);
  if (host_result_) {
    host_wait(stream);
  } else {
    queue_of(stream).wait();  // a wait of the stand-in, not of the program: it orders nothing
  }
  for (const size_t i : outs_) cpu_[i] = at::empty({0}, arguments_[i].toTensor().options().device(c10::kCPU));
  auto values = cpu_;  // keeps the results of out arguments: the call replaces its arguments by its results
  auto made = cpu_;
  op_.redispatchBoxed(kOnCpu, &made);
  Stack results;
  for (size_t r = 0; r < targets_.size(); ++r) results.push_back(place(r, made[r]));
  Tensors outs;
  Tensors contents;
  for (const size_t i : outs_) {
    const auto& out = arguments_[i].toTensor();
    contents.push_back(values[i].toTensor());
    if (out.sizes() != contents.back().sizes()) out.resize_(contents.back().sizes());
    touch(touches_, out, true);
    outs.push_back(as_cpu(out));
  }
  launch(stream, name_, touches_, [targets = targets_, made = std::move(made), outs, contents] {
    for (size_t r = 0; r < targets.size(); ++r) fill(targets[r], made[r]);
    for (size_t i = 0; i < outs.size(); ++i) outs[i].copy_(contents[i]);
  });
  torch::jit::drop(stack_, arguments_.size());
  for (auto& result : results) stack_.push_back(std::move(result));
}

namespace {

void kernel(const c10::OperatorHandle& op, Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  Call(op, *stack).run();
}

/// The CPU kernel has no generator argument and would draw from the CPU's default generator.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  if (train.has_value() && !*train) return {input.clone(), at::ones_like(input, at::kBool)};
  const auto noise = at::empty_like(input).bernoulli_(1 - p);
  const auto mask = noise.to(at::kBool);
  return {at::mul(input, noise.div_(1 - p)), mask};
}

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&kernel>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("native_dropout", &native_dropout);
  // The fallback has lower precedence than these operators' composite kernels.
  library.impl("convolution", torch::CppFunction::makeFromBoxedFunction<&kernel>());
  library.impl("convolution_backward", torch::CppFunction::makeFromBoxedFunction<&kernel>());
}

}  // namespace stand_in
