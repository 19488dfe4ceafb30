// SPDX-License-Identifier: Apache-2.0
#include "accelerate/offload/unit_copy.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>

#include "accelerate/device/streams.hpp"

namespace accelerate::offload {
namespace {

at::TensorOptions bytes_on(c10::Device device) { return at::TensorOptions().dtype(at::kByte).device(device); }

void read_parts(const UnitContent& content, at::Tensor& bytes) {
  char* const to = static_cast<char*>(bytes.mutable_data_ptr());
  for (const UnitContent::Part& part : content.parts) {
    read_values(part.source, part.dtype, to + part.offset, part.bytes);
  }
}

}  // namespace

UnitCopies::UnitCopies(c10::Device device) : device_(device) {
  if (device.is_cpu()) return;
  stream_ = device::stream_of_pool(device);
}

UnitCopies::~UnitCopies() { finish(); }

void UnitCopies::finish() noexcept {
  try {
    if (stream_) device::event_on(*stream_).synchronize();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the device is lost, so nothing is copied
  }
}

UnitMemory UnitCopies::allocate(size_t bytes) const {
  const c10::OptionalStreamGuard guard(stream_);
  UnitMemory memory;
  memory.bytes = at::empty({static_cast<int64_t>(bytes)}, bytes_on(device_));
  return memory;
}

void UnitCopies::pin(UnitContent& content) const {
  const bool is_on_cpu = std::ranges::all_of(content.parts, [](const auto& part) { return !part.source.file; });
  if (!stream_ || !is_on_cpu) return;
  content.pinned = at::empty({static_cast<int64_t>(content.bytes)}, bytes_on(at::kCPU).pinned_memory(true));
  read_parts(content, content.pinned);
  for (UnitContent::Part& part : content.parts) part.source = {};
}

UnitCopies::Staging& UnitCopies::next_staging(size_t bytes) {
  Staging& staging = stagings_[next_++ % stagings_.size()];
  if (staging.copied) staging.copied->synchronize();
  if (!staging.pinned.defined() || staging.pinned.nbytes() < bytes) {
    staging.pinned = at::empty({static_cast<int64_t>(bytes)}, bytes_on(at::kCPU).pinned_memory(true));
  }
  return staging;
}

void UnitCopies::copy(const UnitContent& content, UnitMemory& memory) {
  const at::NoGradGuard no_grad;
  if (!stream_) return read_parts(content, memory.bytes);
  const auto length = static_cast<int64_t>(content.bytes);
  Staging* staging = nullptr;
  if (!content.pinned.defined()) {
    staging = &next_staging(content.bytes);
    read_parts(content, staging->pinned);
  }
  const at::Tensor source = staging == nullptr ? content.pinned : staging->pinned.narrow(0, 0, length);
  const c10::StreamGuard guard(*stream_);
  for (c10::Event& use : memory.last_uses) use.block(*stream_);
  memory.last_uses.clear();
  memory.bytes.narrow(0, 0, length).copy_(source, /*non_blocking=*/true);
  memory.copied.emplace(device::event_on(*stream_));
  if (staging != nullptr) staging->copied.emplace(device::event_on(*stream_));
}

void UnitCopies::wait_on_current_stream(UnitMemory& memory) const {
  if (!stream_) return;
  const auto current = device::current_stream(device_);
  if (std::ranges::find(memory.streams, current) != memory.streams.end()) return;
  memory.copied->block(current);
  memory.streams.push_back(current);
}

void UnitCopies::end_use(UnitMemory& memory) const {
  for (const c10::Stream& stream : memory.streams) memory.last_uses.push_back(device::event_on(stream));
  if (stream_) before_free(memory);
  memory.streams.clear();
}

void UnitCopies::before_free(const UnitMemory& memory) const {
  for (const c10::Stream& stream : memory.streams) memory.bytes.record_stream(stream);
}

}  // namespace accelerate::offload
