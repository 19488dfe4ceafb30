// SPDX-License-Identifier: Apache-2.0
#include "accelerate/device/upload.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "accelerate/device/streams.hpp"

namespace accelerate::device {
namespace {

bool is_uploaded(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_quantized() && !tensor.requires_grad();
}

/// Allocates the targets on the current stream. Undefined for tensors that are not part of the upload.
std::vector<at::Tensor> room_for(const std::vector<at::Tensor>& tensors, c10::Device device) {
  std::vector<at::Tensor> targets;
  for (const auto& tensor : tensors) {
    auto& target = targets.emplace_back();
    if (is_uploaded(tensor)) {
      const auto options = at::TensorOptions().dtype(tensor.scalar_type()).device(device);
      target = at::empty_like(tensor, options, at::MemoryFormat::Preserve);
    }
  }
  return targets;
}

}  // namespace

struct UploadStream::Staging {
  explicit Staging(c10::DeviceType type) : copied(type) {}

  /// \param i       Index of the tensor within the upload.
  /// \param target  Destination; determines the memory order.
  /// \returns the values in pinned memory.
  at::Tensor stage(size_t i, const at::Tensor& tensor, const at::Tensor& target) {
    if (tensor.strides() == target.strides() && tensor.is_pinned()) {
      kept.push_back(tensor);
      return tensor;
    }
    if (pinned.size() <= i) pinned.resize(i + 1);
    auto& memory = pinned[i];
    if (!memory.defined() || memory.nbytes() < target.nbytes()) {
      const auto bytes = static_cast<int64_t>(target.nbytes());
      memory = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
    }
    const auto options = at::TensorOptions().dtype(tensor.scalar_type());
    return at::from_blob(memory.mutable_data_ptr(), tensor.sizes(), target.strides(), options).copy_(tensor);
  }

  std::vector<at::Tensor> pinned;  // [n] uint8 each; only ever grow
  std::vector<at::Tensor> kept;    // the user's own pinned tensors
  c10::Event copied;
  bool open = false;  // true while an upload has not arrived
};

UploadStream::UploadStream(c10::Device device)
    : device_(device), stream_(stream_of_pool(device)), memory_free_(device.type()) {}

UploadStream::~UploadStream() {
  for (const auto& staging : stagings_) {
    try {
      if (!staging->copied.query()) staging->copied.synchronize();
    } catch (const std::exception&) {  // the device is lost, so no copy reads this memory any more
    }
  }
}

UploadStream::Staging& UploadStream::free_staging() {
  Staging* free = nullptr;
  for (const auto& staging : stagings_) {
    if (staging->open || !staging->copied.query()) continue;
    staging->kept.clear();
    free = staging.get();
  }
  if (free == nullptr) free = stagings_.emplace_back(std::make_unique<Staging>(device_.type())).get();
  return *free;
}

Upload UploadStream::begin(const std::vector<at::Tensor>& tensors) {
  const auto home = current_stream(device_);
  Upload upload(device_, home, tensors, room_for(tensors, device_));
  const auto copies = [](const at::Tensor& target) { return target.defined() && target.numel() > 0; };
  if (std::ranges::none_of(upload.targets_, copies)) return upload;
  Staging& staging = free_staging();
  staging.open = true;
  upload.staging_.reset(&staging);
  std::vector<at::Tensor> staged(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (copies(upload.targets_[i])) staged[i] = staging.stage(i, tensors[i], upload.targets_[i]);
  }
  // The copies follow earlier work of `home` on the targets' memory.
  memory_free_.record(home);
  memory_free_.block(stream_);
  const c10::StreamGuard guard(stream_);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (staged[i].defined()) upload.targets_[i].copy_(staged[i], /*non_blocking=*/true);
  }
  staging.copied.record(stream_);
  return upload;
}

void Upload::Release::operator()(UploadStream::Staging* staging) const noexcept { staging->open = false; }

Upload::~Upload() {
  if (!staging_) return;
  try {
    staging_->copied.block(home_);   // later users of the targets' memory wait for the copies
  } catch (const std::exception&) {  // the device is lost
  }
}

void Upload::arrive() {
  const auto current = current_stream(device_);
  const auto staging = std::exchange(staging_, nullptr);
  if (staging) staging->copied.block(current);
  if (current == home_) return;
  if (staging) staging->copied.block(home_);  // later users of that memory wait for the copy
  c10::Event made(device_.type());
  made.record(home_);
  made.block(current);
  for (size_t i = 0; i < sources_.size(); ++i) {
    const auto& there = targets_[i].defined() ? targets_[i] : sources_[i];
    if (there.device() == device_) there.record_stream(current);
  }
}

at::Tensor Upload::take(const at::Tensor& tensor) {
  const size_t i = taken_++;
  if (i < sources_.size() && sources_[i].is_same(tensor) && targets_[i].defined())
    return std::exchange(targets_[i], {});
  // A copy from pinned memory blocks, because a loader reuses pinned memory as soon as it has no owner, and this
  // function does not own it until the copy completes.
  return tensor.to(device_, tensor.scalar_type(), /*non_blocking=*/!tensor.is_pinned());
}

}  // namespace accelerate::device
