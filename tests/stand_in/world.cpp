// SPDX-License-Identifier: Apache-2.0
#include "tests/stand_in/world.hpp"

#include <ATen/DeviceAccelerator.h>
#include <c10/util/Exception.h>

#include <utility>

#include "tests/device.hpp"
#include "tests/stand_in/graph.hpp"

namespace stand_in {
namespace {

thread_local c10::DeviceIndex device_now = 0;                       // NOLINT: required by the device API
thread_local std::array<c10::StreamId, kMaxDevices> streams_now{};  // NOLINT
thread_local int64_t waits_here = 0;                                // NOLINT: host_waits_here()

}  // namespace

World& world() {
  static auto* one = new World;
  return *one;
}

bool on_gpu() {
  static const bool is_cuda = testing::device().is_cuda();
  return is_cuda;
}

int64_t devices() { return on_gpu() ? at::accelerator::deviceCount() : device_count(); }

c10::DeviceIndex device_count() { return static_cast<c10::DeviceIndex>(world().memory.size()); }
c10::DeviceIndex current_device() { return device_now; }

c10::DeviceIndex exchange_device(c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < device_count(), "standin has no device ", static_cast<int>(device));
  return std::exchange(device_now, device);
}

c10::Stream stream_at(c10::DeviceIndex device, int index) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, device), index);
}

c10::Stream current_stream(c10::DeviceIndex device) {
  return stream_at(device, static_cast<int>(streams_now.at(static_cast<size_t>(device))));
}

c10::Stream exchange_stream(const c10::Stream& stream) {
  auto& now = streams_now.at(static_cast<size_t>(stream.device_index()));
  return stream_at(stream.device_index(), static_cast<int>(std::exchange(now, stream.id())));
}

c10::Stream next_pool_stream(c10::DeviceIndex device) {
  static std::atomic<int> next{0};
  return stream_at(device, 1 + next++ % kPool);
}

c10::Stream take_owned_stream(c10::DeviceIndex device) {
  const std::lock_guard lock(world().mutex);
  auto& taken = world().owned.at(static_cast<size_t>(device));
  for (int index = 1 + kPool; index < kStreams; ++index) {
    if (taken.insert(index).second) return stream_at(device, index);
  }
  TORCH_CHECK(false, "standin: all ", kOwned, " streams for communicators of device ", static_cast<int>(device),
              " are taken");
}

void restore_gradient(const c10::Stream& stream) {
  const std::lock_guard lock(world().mutex);
  world().owned.at(static_cast<size_t>(stream.device_index())).erase(static_cast<int>(stream.id()));
}

int number_of(const c10::Stream& stream) { return stream.device_index() * kStreams + static_cast<int>(stream.id()); }

Queue& queue_of(const c10::Stream& stream) { return *world().queues.at(static_cast<size_t>(number_of(stream))); }

void wait_for(const c10::Stream& stream) {
  auto& queue = queue_of(stream);
  Clock reached;
  {
    const std::lock_guard lock(world().mutex);
    reached = queue.seen;
    reached.raise(number_of(stream), queue.issued());
  }
  queue.wait();
  const std::lock_guard lock(world().mutex);
  world().host.join(reached);
}

void host_wait(const c10::Stream& stream) {
  refuse_while_recording("a wait of the host", stream);
  count_host_wait(stream.device_index());
  wait_for(stream);
}

void count_host_wait(c10::DeviceIndex device) {
  ++world().host_waits.at(static_cast<size_t>(device));
  ++waits_here;
}

void finish() {
  for (const auto& queue : world().queues) {
    try {
      queue->wait();
    } catch (const std::exception&) {  // from a job without a waiter
    }
  }
}

int64_t host_waits(c10::DeviceIndex device) { return world().host_waits.at(static_cast<size_t>(device)); }
int64_t host_waits_here() { return waits_here; }

int64_t pageable_uploads(c10::DeviceIndex device) { return world().pageable_uploads.at(static_cast<size_t>(device)); }
int64_t pinned_allocations() { return world().pinned_allocations; }

std::vector<std::string> detect_races() {
  const std::lock_guard lock(world().mutex);
  return std::exchange(world().races, {});
}

void set_delay(int microseconds, Slow slow) {
  world().delay_us = microseconds;
  world().slow = slow;
}

void set_limit(c10::DeviceIndex device, size_t bytes) {
  const std::lock_guard lock(world().mutex);
  world().limit.at(static_cast<size_t>(device)) = bytes;
}

bool ordered(const Launch& a, const Launch& b) {
  if (a.stream == b.stream) return a.job < b.job;
  const auto at = static_cast<size_t>(a.stream);
  return at < b.after.size() && b.after[at] >= a.job;
}

void start_trace() {
  const std::lock_guard lock(world().mutex);
  world().trace.emplace();
}

std::vector<Launch> take_trace() {
  const std::lock_guard lock(world().mutex);
  return std::exchange(world().trace, std::nullopt).value_or(std::vector<Launch>{});
}

std::vector<std::string> synchronous_operators() {
  const std::lock_guard lock(world().mutex);
  return {world().synchronous_operators.begin(), world().synchronous_operators.end()};
}

}  // namespace stand_in
