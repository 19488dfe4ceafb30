// SPDX-License-Identifier: Apache-2.0
#include "accelerate/checkpoint/snapshot.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/InferenceMode.h>

#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "accelerate/checkpoint/tensors.hpp"

namespace accelerate::checkpoint {
namespace {

class Copier {
 public:
  Copier(CheckpointContent buffers, device::Download& download) : download_(download) {
    for (auto& model : buffers.models) collect(model);
    collect(buffers.masters);
    for (auto& optimizer : buffers.optimizers) {
      for (auto& [number, tensors] : optimizer.tensors) collect(tensors);
    }
    for (auto& custom : buffers.customs) {
      if (auto* tensors = std::get_if<NamedTensors>(&custom)) collect(*tensors);
    }
    if (buffers.window) collect(buffers.window->gradients);
    collect(buffers.buffers);
    collect(buffers.buffers_of_rank_0);
    collect(buffers.comm_hooks);
    for (auto& part : buffers.parts) collect(part.elements);
  }

  void copy(at::Tensor& tensor) {
    if (!tensor.defined() || tensor.layout() != c10::kStrided) return;
    const at::Tensor source = tensor.detach();
    at::Tensor copy = buffer_like(source);
    if (source.is_cpu()) {
      copy.copy_(source);
    } else {
      download_.begin(copy, source);
    }
    tensor = std::move(copy);
  }
  void copy(NamedTensors& tensors) {
    // Tied tensors stay tied.
    std::unordered_map<const void*, std::pair<at::Tensor, at::Tensor>> copies;
    for (auto& [name, tensor] : tensors) {
      if (!tensor.defined() || tensor.layout() != c10::kStrided) continue;
      const auto known = copies.find(tensor.const_data_ptr());
      if (known != copies.end() && same_memory(tensor, known->second.first)) {
        tensor = known->second.second;
        continue;
      }
      const at::Tensor source = tensor;
      copy(tensor);
      copies.try_emplace(source.const_data_ptr(), source, tensor);
    }
  }

 private:
  // Tied tensors share one buffer.
  void collect(NamedTensors& tensors) {
    for (auto& [name, tensor] : tensors) collect(tensor);
  }
  void collect(at::Tensor& tensor) {
    if (!tensor.defined() || tensor.layout() != c10::kStrided || !tensor.is_cpu()) return;
    if (!collected_.insert(tensor.const_data_ptr()).second) return;
    spare_.emplace(tensor.nbytes(), std::move(tensor));
  }
  // Reuses memory of the previous snapshot, because new pages from the system are slow.
  at::Tensor buffer_like(const at::Tensor& source) {
    const auto [first, last] = spare_.equal_range(source.nbytes());
    for (auto it = first; it != last; ++it) {
      if (it->second.scalar_type() != source.scalar_type() || it->second.sizes() != source.sizes()) continue;
      if (it->second.is_pinned() == source.is_cpu()) continue;
      at::Tensor buffer = std::move(it->second);
      spare_.erase(it);
      return buffer;
    }
    // Keeps the strides, so that one copy of memory suffices.
    return at::empty_like(source, source.options().device(at::kCPU).pinned_memory(!source.is_cpu()),
                          at::MemoryFormat::Preserve);
  }

  std::unordered_multimap<size_t, at::Tensor> spare_;
  std::unordered_set<const void*> collected_;
  device::Download& download_;
};

}  // namespace

Snapshot snapshot(const CheckpointContent& content, CheckpointContent buffers) {
  const at::NoGradGuard no_grad;
  const c10::InferenceMode off(false);  // inference tensors cannot be reused outside inference mode
  Snapshot taken{.content = content};
  CheckpointContent& copy = taken.content;
  Copier copier(std::move(buffers), taken.download);
  for (auto& model : copy.models) copier.copy(model);
  copier.copy(copy.masters);
  for (auto& optimizer : copy.optimizers) {
    for (auto& [number, tensors] : optimizer.tensors) copier.copy(tensors);
  }
  for (auto& custom : copy.customs) {
    if (auto* tensors = std::get_if<NamedTensors>(&custom)) copier.copy(*tensors);
  }
  if (copy.window) copier.copy(copy.window->gradients);
  copier.copy(copy.buffers);
  copier.copy(copy.buffers_of_rank_0);
  copier.copy(copy.comm_hooks);
  for (auto& part : copy.parts) copier.copy(part.elements);
  taken.download.finish();
  return taken;
}

}  // namespace accelerate::checkpoint
