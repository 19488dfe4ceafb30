// SPDX-License-Identifier: Apache-2.0
// State of the device in this process: its streams and observations.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/stand_in/clock.hpp"
#include "tests/stand_in/queue.hpp"
#include "tests/stand_in/stand_in.hpp"

namespace stand_in {

inline constexpr int kMaxDevices = 16;
inline constexpr int kPool = 8;    ///< number of streams of a device that getNewStream() returns in turn
inline constexpr int kOwned = 64;  ///< number of streams of a device for exclusive use by communicators
inline constexpr int kStreams = 1 + kPool + kOwned;

struct World {
  std::mutex mutex;                            ///< guards all members that are not atomic
  std::vector<std::unique_ptr<Queue>> queues;  ///< by number_of(stream); created once
  Clock host;                                  ///< work for which the program has waited
  std::vector<c10::CachingDeviceAllocator::DeviceStats> memory;
  std::vector<size_t> limit;
  std::vector<at::Generator> generators;
  std::vector<std::set<int>> owned;  ///< per device: streams in use by communicators
  std::vector<std::string> races;
  std::optional<std::vector<Launch>> trace;
  std::map<int, std::shared_ptr<struct Capture>> captures;  ///< by number_of(stream): capturing streams
  std::map<const char*, size_t> pinned;                     ///< start address and bytes
  std::set<std::string> synchronous_operators;
  std::array<std::atomic<int64_t>, kMaxDevices> host_waits{};
  std::array<std::atomic<int64_t>, kMaxDevices> pageable_uploads{};
  std::atomic<int64_t> pinned_allocations{0};
  std::atomic<int> delay_us{0};
  std::atomic<Slow> slow{Slow::all};
};

/// Never destroyed, because its threads outlive main().
World& world();

c10::DeviceIndex device_count();
c10::DeviceIndex current_device();
c10::DeviceIndex exchange_device(c10::DeviceIndex device);
/// Current stream of this thread.
c10::Stream current_stream(c10::DeviceIndex device);
c10::Stream exchange_stream(const c10::Stream& stream);

/// The streams of a device: 0 is the default one, then the pool, then the owned ones.
c10::Stream stream_at(c10::DeviceIndex device, int index);
c10::Stream next_pool_stream(c10::DeviceIndex device);
/// A stream for exclusive use until it is returned: a collective that waits on it blocks no other work.
c10::Stream take_owned_stream(c10::DeviceIndex device);
void restore_gradient(const c10::Stream& stream);

int number_of(const c10::Stream& stream);
Queue& queue_of(const c10::Stream& stream);

/// Waits until the stream has reached this point. Later work of the program follows it.
void wait_for(const c10::Stream& stream);
/// The same, and counts the wait.
void host_wait(const c10::Stream& stream);
/// Counts a wait without waiting.
void count_host_wait(c10::DeviceIndex device);

}  // namespace stand_in
