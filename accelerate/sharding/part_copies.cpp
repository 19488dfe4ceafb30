// SPDX-License-Identifier: Apache-2.0
#include "accelerate/sharding/part_copies.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <exception>

#include "accelerate/device/streams.hpp"

namespace accelerate::sharding {
namespace {

using device::current_stream, device::event_on, device::stream_of_pool;

constexpr size_t kBuffers = 2, kDownloads = 2;

}  // namespace

PartCopies::PartCopies(c10::Device device)
    : device_(device), up_(stream_of_pool(device)), down_(stream_of_pool(device)) {}

PartCopies::~PartCopies() {
  try {
    finish();
    free_buffers();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the device is lost, so nothing is copied
  }
}

at::Tensor PartCopies::to_host(const at::Tensor& values) {
  return at::empty(values.sizes(), values.options().device(at::kCPU).pinned_memory(true)).copy_(values);
}

PartCopies::Buffer& PartCopies::take_buffer(size_t bytes) {
  auto free = std::ranges::find_if(buffers_, [](const auto& buffer) { return !buffer->is_taken; });
  if (free == buffers_.end() || buffers_.size() < kBuffers) {
    free = buffers_.insert(buffers_.end(), std::make_unique<Buffer>());
  }
  std::rotate(free, free + 1, buffers_.end());
  Buffer& buffer = *buffers_.back();
  if (buffer.last_use) buffer.last_use->block(up_);
  if (!buffer.bytes.defined() || buffer.bytes.nbytes() < bytes) {
    const c10::StreamGuard guard(up_);
    buffer.bytes = at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(device_).dtype(at::kByte));
  }
  buffer.is_taken = true;
  return buffer;
}

PartCopies::Gather PartCopies::start(const at::Tensor& part, const Collective& collective) {
  const c10::Stream current = current_stream(device_);
  is_pending_ = true;
  Gather gather{.buffer = &take_buffer(part.nbytes())};
  const c10::StreamGuard guard(up_);
  try {
    const at::Tensor values =
        gather.buffer->bytes.narrow(0, 0, static_cast<int64_t>(part.nbytes())).view(part.scalar_type());
    values.copy_(part, /*non_blocking=*/true);
    event_on(current).block(up_);
    gather.pending = collective(values);
  } catch (...) {
    gather.buffer->is_taken = false;
    throw;
  }
  gather.started.emplace(event_on(up_));
  return gather;
}

void PartCopies::finish(Gather gather) {
  const c10::Stream current = current_stream(device_);
  const auto release = [&] {
    gather.buffer->last_use.emplace(event_on(current));
    gather.buffer->is_taken = false;
  };
  try {
    gather.pending.wait();
    gather.started->block(current);  // the collective of a single rank has no pending operation
  } catch (...) {
    release();
    throw;
  }
  release();
}

void PartCopies::free_buffers() {
  std::erase_if(buffers_, [&](const auto& buffer) {
    if (!buffer->is_taken && buffer->last_use) buffer->last_use->block(up_);
    return !buffer->is_taken;
  });
}

void PartCopies::download(const at::Tensor& source, const at::Tensor& target, bool adds) {
  const c10::Stream current = current_stream(device_);
  if (downloads_.size() == kDownloads) {  // later work of the current stream may use the memory of the source
    downloads_.front().copied.block(current);
    downloads_.pop_front();
  }
  is_pending_ = true;
  event_on(current).block(down_);
  const c10::StreamGuard guard(down_);
  at::Tensor values = source;
  if (adds) {
    values = at::empty_like(source);
    values.copy_(target, /*non_blocking=*/true);
    values.add_(source);
  }
  target.copy_(values, /*non_blocking=*/true);
  downloads_.push_back({source, event_on(down_)});
}

void PartCopies::finish() {
  if (!is_pending_) return;
  event_on(up_).block(down_);  // one wait for both streams
  event_on(down_).synchronize();
  downloads_.clear();
  is_pending_ = false;
}

}  // namespace accelerate::sharding
