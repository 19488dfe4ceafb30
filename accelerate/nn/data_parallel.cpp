// SPDX-License-Identifier: Apache-2.0
#include "accelerate/nn/data_parallel.hpp"

#include <ATen/ThreadLocalState.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Type.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <typeinfo>

#include "accelerate/base/exception_text.hpp"
#include "accelerate/device/device_selection.hpp"
#include "accelerate/device/out_of_memory_error.hpp"
#include "accelerate/device/seed.hpp"
#include "accelerate/device/streams.hpp"
#include "accelerate/nn/segment_graph.hpp"
#include "accelerate/nn/sync_batch_norm.hpp"

namespace accelerate::nn::detail {
namespace {

using torch::autograd::variable_list;

/// Passes the gradient of a copy to its parameter.
struct FromCopy : torch::autograd::Node {
  explicit FromCopy(at::Device to) : device(to) {}
  variable_list apply(variable_list&& gradients) override {
    const at::Tensor& gradient = gradients[0];
    return {gradient.defined() ? gradient.to(device) : gradient};
  }
  at::Device device;
};

template <typename Items>
at::Tensor twin_in(const Items& items, const std::string& name, const at::Tensor& original) {
  const at::Tensor* found = items.find(name);
  if (found == nullptr || found->sizes() != original.sizes()) {
    base::fail(ErrorKind::usage, {}, "DataParallel",
               "{} is {} in the module, {} in its copy; the factory must create the same layers", name,
               original.sizes(), found == nullptr ? "not there" : fmt::format("{}", found->sizes()));
  }
  return *found;
}

/// The caller's current stream, for a device with streams.
std::optional<c10::Stream> current_stream(at::Device on) {
  if (on.is_cpu()) return {};
  return device::current_stream(on);
}

/// Out-of-memory errors stay c10::OutOfMemoryError: a prepared forward detects them by type and adds known memory.
[[noreturn]] void rethrow(const std::exception_ptr& failure, size_t i, at::Device device) {
  const std::string what = base::exception_summary(failure);
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    base::fail(error.kind(), {}, "DataParallel", "copy {} on {}: {}", i, device.str(), what);
  } catch (const std::exception& error) {
    const bool hosts = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
    if (hosts || device::is_out_of_memory_error(error)) {
      throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__},
                                  fmt::format("DataParallel: copy {} on {}: {}{}", i, device.str(),
                                              hosts ? "the host is out of memory: " : "", what));
    }
    base::fail(ErrorKind::device, {}, "DataParallel", "copy {} on {}: {}", i, device.str(), what);
  } catch (...) {
    base::fail(ErrorKind::device, {}, "DataParallel", "copy {} on {}: {}", i, device.str(), what);
  }
}

/// Copies the training mode of each layer, because layers may have their own (a BatchNorm frozen by eval()).
void take_modes(const torch::nn::Module& module, torch::nn::Module& replica) {
  const bool mode = module.is_training();
  replica.train(mode);
  const auto layers = module.modules(/*include_self=*/false);
  if (std::all_of(layers.begin(), layers.end(), [&](const auto& layer) { return layer->is_training() == mode; }))
    return;
  const auto twins = replica.named_modules("", /*include_self=*/false);
  // train() also sets the children, so parents are first
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    if (const auto* twin = twins.find(item.key())) (*twin)->train(item.value()->is_training());
  }
}

/// Replicas run concurrently, so the order of their collectives would be random, and ranks may have different replicas.
void throw_on_sync_batch_norm(const torch::nn::Module& module) {
  for (const auto& item : module.named_modules()) {
    const auto* norm = dynamic_cast<const SyncBatchNormImpl*>(item.value().get());
    if (norm == nullptr || !norm->connected() || norm->group().size() == 1) continue;
    base::fail(ErrorKind::usage, norm->group().place(), "DataParallel",
               "{} is a SyncBatchNorm over {} ranks, which copies of a module cannot query at the same time; give each "
               "device a rank of its own, or let it be a BatchNorm",
               item.key(), norm->group().size());
  }
}

}  // namespace

DataParallelCore::DataParallelCore(std::vector<at::Device> devices, std::optional<at::Device> output_device,
                                   int64_t dim)
    : devices_(std::move(devices)), output_device_(at::kCPU), dim_(dim) {
  if (devices_.empty()) base::fail(ErrorKind::usage, {}, "DataParallel", "there are 0 devices, must be at least 1");
  output_device_ = output_device.value_or(devices_.front());
  const auto there = device::accelerator();
  for (const auto& device : devices_) device::check_visible(device, there, "DataParallel");
  device::check_visible(output_device_, there, "DataParallel");
}

void DataParallelCore::count(const at::Tensor& tensor) {
  if (tensor.dim() == 0) return;
  if (dim_ >= tensor.dim() || dim_ < -tensor.dim()) {
    base::fail(ErrorKind::usage, {}, "DataParallel", "dim is {}, an input has {} dimensions", dim_, tensor.dim());
  }
  if (length_ >= 0 && tensor.size(dim_) != length_) {
    base::fail(
        ErrorKind::usage, {}, "DataParallel",
        "one input has {} along dim {}, another {}; all inputs are split in the same way: bind other arguments to the "
        "module",
        length_, dim_, tensor.size(dim_));
  }
  length_ = tensor.size(dim_);
}

size_t DataParallelCore::parts() const {
  const auto all = static_cast<int64_t>(devices_.size());
  if (length_ < 0) return 1;
  const int64_t each = std::max<int64_t>((length_ + all - 1) / all, 1);
  return static_cast<size_t>(std::max<int64_t>((length_ + each - 1) / each, 1));
}

at::Tensor DataParallelCore::part_of(const at::Tensor& tensor, size_t i) const {
  if (tensor.dim() == 0) return tensor.to(devices_[i]);
  const auto all = static_cast<int64_t>(devices_.size());
  const int64_t each = (length_ + all - 1) / all;
  const int64_t first = each * static_cast<int64_t>(i);
  return tensor.narrow(dim_, first, std::min(each, length_ - first)).to(devices_[i]);
}

void DataParallelCore::check_place(const torch::nn::Module& module) const {
  if (devices_.size() > 1) throw_on_sync_batch_norm(module);
  for (const auto& item : module.named_parameters()) {
    // "cuda" matches any CUDA device.
    const at::Device device = item.value().device(), first = devices_.front();
    if (device.type() == first.type() && (!first.has_index() || device == first)) return;
    base::fail(
        ErrorKind::usage, {}, "DataParallel",
        "{} is on {}, the first device is {}; move the module there, or begin the devices with {}: prepare() moves "
        "a module to its rank's device",
        item.key(), device.str(), first.str(), device.str());
  }
}

void DataParallelCore::connect(const torch::nn::Module& module, torch::nn::Module& replica, size_t i) const {
  const bool with_gradients = at::GradMode::is_enabled();
  const auto values_on = [&](const at::Tensor& from, const at::Tensor& to) {
    const at::NoGradGuard no_grad;
    to.set_data(from.detach().to(devices_[i], from.scalar_type(), /*non_blocking=*/false, /*copy=*/true));
  };
  take_modes(module, replica);
  const auto parameters = replica.named_parameters();
  for (const auto& item : module.named_parameters()) {
    const at::Tensor twin = twin_in(parameters, item.key(), item.value());
    values_on(item.value(), twin);
    twin.set_requires_grad(item.value().requires_grad());
    if (!with_gradients || !item.value().requires_grad()) continue;
    const NodePtr node = make_node<FromCopy>(item.value().device());
    node->set_next_edges(torch::autograd::collect_next_edges(item.value()));
    torch::autograd::set_history(twin, node);
  }
  const auto buffers = replica.named_buffers();
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) values_on(item.value(), twin_in(buffers, item.key(), item.value()));
  }
}

void DataParallelCore::run(const std::function<void(size_t)>& work) const {
  const size_t parts = this->parts();
  std::vector<std::exception_ptr> failures(parts);
  const at::ThreadLocalState callers;
  const auto part = [&](size_t i, std::optional<c10::Stream> stream) {
    try {
      const at::ThreadLocalStateGuard state(callers);
      const c10::OptionalStreamGuard guard(stream);
      work(i);
    } catch (...) {
      failures[i] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (size_t i = 1; i < parts; ++i) threads.emplace_back(part, i, current_stream(devices_[i]));
    part(0, current_stream(devices_[0]));
  }
  for (size_t i = 0; i < parts; ++i) {
    if (failures[i]) rethrow(failures[i], i, devices_[i]);
  }
}

void without_drawing(const std::function<void()>& make) {
  // two concurrent calls would each restore the other's state; make() may nest
  static std::recursive_mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  const at::Tensor before = device::rng_state(at::kCPU);
  const auto put_back = [&] { device::set_rng_state(at::kCPU, before); };
  try {
    make();
  } catch (...) {
    put_back();
    throw;
  }
  put_back();
}

std::shared_ptr<torch::nn::Module> clone_of(const torch::nn::Module& module, at::Device device) {
  try {
    return module.clone(device);
  } catch (const c10::Error& error) {
    if (std::string(error.what_without_backtrace()).find("clone()") == std::string::npos) throw;
    base::fail(ErrorKind::usage, {}, "DataParallel",
               "{} cannot be copied; derive it from torch::nn::Cloneable and make its layers in reset(), or pass a "
               "factory that creates another one",
               module.name());
  }
}

void throw_clone_of_other_class(const torch::nn::Module& module, const torch::nn::Module& clone) {
  base::fail(
      ErrorKind::usage, {}, "DataParallel",
      "clone() of {} makes a {}, the class that it derives from; override clone() in the class itself, derive it "
      "from torch::nn::Cloneable of itself, or pass a factory that creates another one",
      c10::demangle(typeid(module).name()), c10::demangle(typeid(clone).name()));
}

void throw_null_clone() {
  base::fail(
      ErrorKind::usage, {}, "DataParallel",
      "the factory returned a null pointer; it must create another module of the same class, as clone() of the class "
      "itself would");
}

}  // namespace accelerate::nn::detail
