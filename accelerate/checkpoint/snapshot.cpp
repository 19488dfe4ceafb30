// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <unordered_map>
#include <utility>

#include "accelerate/checkpoint/content.hpp"

namespace accelerate::checkpoint {
namespace {

class Copier {
 public:
  explicit Copier(Content buffers) {
    for (auto& model : buffers.models) collect(model);
    collect(buffers.masters);
    for (auto& optimizer : buffers.optimizers) {
      for (auto& [number, tensors] : optimizer.tensors) collect(tensors);
    }
  }

  void copy(at::Tensor& tensor) {
    if (!tensor.defined() || tensor.layout() != c10::kStrided) return;
    const at::Tensor source = tensor.detach();
    at::Tensor copy = buffer_like(source);
    // Pinned memory takes it while the host goes on; all of it is waited for at the end.
    copy.copy_(source, /*non_blocking=*/!source.is_cpu());
    if (!source.is_cpu()) device_ = source.device();
    tensor = std::move(copy);
  }
  void copy(NamedTensors& tensors) {
    // What is tied stays tied.
    std::unordered_map<const void*, std::pair<at::Tensor, at::Tensor>> copies;
    for (auto& [name, tensor] : tensors) {
      if (!tensor.defined() || tensor.layout() != c10::kStrided) continue;
      const auto known = copies.find(tensor.const_data_ptr());
      const bool tied = known != copies.end() && tensor.numel() > 0 && known->second.first.sizes() == tensor.sizes() &&
                        known->second.first.strides() == tensor.strides() &&
                        known->second.first.scalar_type() == tensor.scalar_type();
      if (tied) {
        tensor = known->second.second;
        continue;
      }
      const at::Tensor source = tensor;
      copy(tensor);
      copies.try_emplace(source.const_data_ptr(), source, tensor);
    }
  }
  void wait() const {
    if (device_) c10::impl::VirtualGuardImpl(device_->type()).synchronizeDevice(device_->index());
  }

 private:
  void collect(NamedTensors& tensors) {
    for (auto& [name, tensor] : tensors) {
      if (tensor.defined() && tensor.is_cpu()) spare_.emplace(tensor.nbytes(), std::move(tensor));
    }
  }
  // Memory of the snapshot before saves the system from giving out new pages.
  at::Tensor buffer_like(const at::Tensor& source) {
    const auto [first, last] = spare_.equal_range(source.nbytes());
    for (auto it = first; it != last; ++it) {
      if (it->second.scalar_type() != source.scalar_type() || it->second.sizes() != source.sizes()) continue;
      if (it->second.is_pinned() == source.is_cpu()) continue;
      at::Tensor buffer = std::move(it->second);
      spare_.erase(it);
      return buffer;
    }
    return at::empty(source.sizes(), source.options().device(at::kCPU).pinned_memory(!source.is_cpu()));
  }

  std::unordered_multimap<size_t, at::Tensor> spare_;
  std::optional<c10::Device> device_;
};

}  // namespace

Content snapshot(const Content& content, Content buffers) {
  const at::NoGradGuard no_grad;
  Content copy = content;
  Copier copier(std::move(buffers));
  for (auto& model : copy.models) copier.copy(model);
  copier.copy(copy.masters);
  for (auto& optimizer : copy.optimizers) {
    for (auto& [number, tensors] : optimizer.tensors) copier.copy(tensors);
  }
  for (auto& custom : copy.customs) {
    if (auto* tensors = std::get_if<NamedTensors>(&custom)) copier.copy(*tensors);
  }
  if (copy.window) copier.copy(copy.window->gradients);
  copier.wait();
  return copy;
}

}  // namespace accelerate::checkpoint
