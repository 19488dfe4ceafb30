// SPDX-License-Identifier: Apache-2.0
#include "tests/stand_in/blocks.hpp"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "tests/stand_in/graph.hpp"
#include "tests/stand_in/world.hpp"

namespace stand_in {
namespace {

constexpr size_t kMostRaces = 100;  // stored until they are read

bool is_side(int stream) { return stream % kStreams != 0; }

std::string name_of(int stream) {
  return fmt::format("{} stream {} of standin:{}", is_side(stream) ? "side" : "main", stream % kStreams,
                     stream / kStreams);
}

/// Call with the world's mutex locked.
bool comes_after(const Queue& queue, int own, int stream, uint64_t job) {
  return stream == own || queue.seen.of(stream) >= job || world().host.of(stream) >= job;
}

void report(const std::string& what, int stream, const Access& before) {
  auto& races = world().races;
  if (races.size() >= kMostRaces) return;
  races.push_back(fmt::format("{} on {} is not ordered after a {} on {}", what, name_of(stream),
                              before.write ? "write" : "read", name_of(before.stream)));
}

void sleep_if_slow(bool side) {
  const int most = world().delay_us;
  if (most == 0 || world().slow.load() == (side ? Slow::main : Slow::side)) return;
  thread_local std::minstd_rand random(  // NOLINT: a stream's own
      static_cast<unsigned>(std::hash<std::thread::id>()(std::this_thread::get_id())));
  const int half = most / 2;
  std::this_thread::sleep_for(std::chrono::microseconds(half + static_cast<int>(random() % (half + 1))));
}

void check(const Queue& queue, int own, const std::string& what, const Touch& touch) {
  for (const Access& before : touch.block->accesses) {
    const bool overlaps = before.low < touch.high && touch.low < before.high;
    if (!overlaps || !(before.write || touch.write)) continue;
    if (comes_after(queue, own, before.stream, before.job)) continue;
    return report(what, own, before);
  }
}

/// Records the access, and removes those that it covers for every later access.
void keep(const Touch& touch, int own, uint64_t job) {
  std::erase_if(touch.block->accesses, [&](const Access& before) {
    const bool covered = touch.low <= before.low && before.high <= touch.high;
    return covered && (touch.write || (before.stream == own && !before.write));
  });
  touch.block->accesses.push_back({touch.low, touch.high, own, job, touch.write});
}

void keep_in_trace(const std::string& what, const c10::Stream& stream, const Queue& queue, uint64_t job) {
  auto& trace = world().trace;
  if (!trace) return;
  Clock after = queue.seen;
  after.join(world().host);
  trace->push_back({.what = what,
                    .device = stream.device_index(),
                    .side = is_side(number_of(stream)),
                    .stream = number_of(stream),
                    .job = job,
                    .after = after.jobs()});
}

auto& used(const Block& block) { return world().memory.at(static_cast<size_t>(block.device)).allocated_bytes[0]; }

/// Ends the block's lifetime on the device: later reads return NaN.
void poison(const Block& block) { std::memset(block.memory, 0xff, block.bytes); }

void release(void* context) {
  const std::unique_ptr<BlockPtr> holder(static_cast<BlockPtr*>(context));
  const BlockPtr block = *holder;
  const std::lock_guard lock(world().mutex);
  if (block->of_graph) return used(*block).decrease(block->bytes);
  const auto& own = *world().queues.at(static_cast<size_t>(block->stream));
  for (const Access& access : block->accesses) {
    if (comes_after(own, block->stream, access.stream, access.job) || block->recorded.contains(access.stream)) continue;
    report("free (without record_stream)", block->stream, access);
  }
  // Without other streams the memory is free immediately, as in the caching allocator.
  const bool at_once = block->recorded.empty();
  if (at_once) used(*block).decrease(block->bytes);
  auto streams = block->recorded;
  streams.insert(block->stream);
  const auto left = std::make_shared<std::atomic<size_t>>(streams.size());
  for (const int stream : streams) {
    world().queues.at(static_cast<size_t>(stream))->push([block, left, at_once] {
      if (--*left > 0) return;
      poison(*block);
      if (at_once) return;
      const std::lock_guard lock_later(world().mutex);
      used(*block).decrease(block->bytes);
    });
  }
}

void release_nothing(void*) {}

/// The blocks that exist, by address. Never destroyed, because blocks outlive main().
struct Registry {
  std::mutex mutex;
  std::map<const char*, std::weak_ptr<Block>> blocks;
};

Registry& registry() {
  static auto* one = new Registry;
  return *one;
}

BlockPtr block_at(const char* address) {
  BlockPtr block;  // released without the lock, which the end of a block takes
  {
    const std::lock_guard lock(registry().mutex);
    const auto next = registry().blocks.upper_bound(address);
    if (next != registry().blocks.begin()) block = std::prev(next)->second.lock();
  }
  return block != nullptr && address < block->address + block->bytes ? block : nullptr;
}

bool reserve(const Block& block) {
  const std::lock_guard lock(world().mutex);
  const auto now = static_cast<size_t>(used(block).current);
  if (now + block.bytes > world().limit.at(static_cast<size_t>(block.device))) return false;
  used(block).increase(block.bytes);
  return true;
}

/// Waits for memory that record_stream() holds back.
void wait_for_all_streams(c10::DeviceIndex device) {
  for (int index = 0; index < kStreams; ++index) queue_of(stream_at(device, index)).wait();
}

[[noreturn]] void fail_out_of_memory(const Block& block) {
  size_t in_use = 0;
  size_t limit = 0;
  {
    const std::lock_guard lock(world().mutex);
    const auto device = static_cast<size_t>(block.device);
    ++world().memory.at(device).num_ooms;
    in_use = static_cast<size_t>(used(block).current);
    limit = world().limit.at(device);
  }
  TORCH_CHECK_WITH(OutOfMemoryError, false, "standin:", static_cast<int>(block.device),
                   " is out of memory: tried to allocate ", block.bytes, " bytes, ", in_use, " of ", limit, " in use");
}

}  // namespace

Block::~Block() {
  if (address != nullptr) {
    const std::lock_guard lock(registry().mutex);
    registry().blocks.erase(address);
  }
  if (address != nullptr) ::munmap(address, bytes);
  std::free(memory);  // NOLINT: of aligned_alloc
}

void launch(const c10::Stream& stream, const std::string& what, const std::vector<Touch>& touches,
            std::function<void()> job) {
  Queue& queue = queue_of(stream);
  const int own = number_of(stream);
  const std::lock_guard lock(world().mutex);
  if (const auto capture = capture_of(own)) return capture->add(own, {touches, std::move(job)});
  const auto id = queue.push([job = std::move(job), side = is_side(own)] {
    sleep_if_slow(side);
    job();
  });
  keep_in_trace(what, stream, queue, id);
  for (const Touch& touch : touches) {
    check(queue, own, what, touch);
    keep(touch, own, id);
  }
}

c10::DataPtr DeviceMemory::allocate(size_t bytes) {
  const c10::Device device(kType, current_device());
  if (bytes == 0) return {nullptr, nullptr, &release_nothing, device};
  auto block = std::make_shared<Block>();
  block->bytes = bytes;
  block->device = device.index();
  block->stream = number_of(current_stream(device.index()));
  if (!reserve(*block)) {
    wait_for_all_streams(device.index());
    if (!reserve(*block)) fail_out_of_memory(*block);
  }
  block->memory = static_cast<char*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
  void* const address = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(block->memory != nullptr && address != MAP_FAILED, "standin: this machine has no ", bytes, " bytes more");
  block->address = static_cast<char*>(address);
  {
    const std::lock_guard registry_lock(registry().mutex);
    registry().blocks.insert_or_assign(block->address, block);
  }
  poison(*block);
  const std::lock_guard lock(world().mutex);
  if (const auto capture = capture_of(block->stream)) {
    block->of_graph = true;
    // With CUDA the memory may have contained other tensors of the capture before, in each replay again.
    capture->add(block->stream, {{{block, block->address, block->address + bytes, true}}, [block] { poison(*block); }});
    return {address, new BlockPtr(std::move(block)), &release, device};  // NOLINT: as below
  }
  const auto issued = world().queues.at(static_cast<size_t>(block->stream))->issued();
  block->accesses.push_back({block->address, block->address + bytes, block->stream, issued, true});
  return {address, new BlockPtr(std::move(block)), &release, device};  // NOLINT: release() deletes it
}

void DeviceMemory::copy_data(void*, const void*, size_t) const {
  TORCH_CHECK(false, "standin: the host cannot copy device memory");
}

/// There is no cache; counts the calls.
void DeviceMemory::emptyCache(c10::MempoolId_t) {
  const std::lock_guard lock(world().mutex);
  for (auto& device : world().memory) ++device.num_device_free;
}

/// As CUDA's allocator, it ignores pointers that it did not hand out.
void DeviceMemory::recordStream(const c10::DataPtr& data, c10::Stream stream) {
  if (data.get_deleter() != &release) return;
  const auto block = block_of(data);
  if (block == nullptr) return;
  const std::lock_guard lock(world().mutex);
  if (number_of(stream) != block->stream) block->recorded.insert(number_of(stream));
}

c10::CachingDeviceAllocator::DeviceStats DeviceMemory::getDeviceStats(c10::DeviceIndex device) {
  const std::lock_guard lock(world().mutex);
  return world().memory.at(static_cast<size_t>(device));
}

void DeviceMemory::resetAccumulatedStats(c10::DeviceIndex device) {
  const std::lock_guard lock(world().mutex);
  world().memory.at(static_cast<size_t>(device)).allocated_bytes[0].reset_accumulated();
}

void DeviceMemory::resetPeakStats(c10::DeviceIndex device) {
  const std::lock_guard lock(world().mutex);
  world().memory.at(static_cast<size_t>(device)).allocated_bytes[0].reset_peak();
}

std::pair<size_t, size_t> DeviceMemory::getMemoryInfo(c10::DeviceIndex device) {
  const std::lock_guard lock(world().mutex);
  const auto at = static_cast<size_t>(device);
  const auto total = world().limit.at(at);
  const auto now = static_cast<size_t>(world().memory.at(at).allocated_bytes[0].current);
  return {total - std::min(now, total), total};
}

DeviceMemory& device_memory() {
  static auto* one = new DeviceMemory;
  return *one;
}

BlockPtr block_of(const c10::DataPtr& data) {
  auto* const context = data.get_context();
  if (context == nullptr || data.get() == nullptr) return nullptr;
  if (data.get_deleter() == &release) return *static_cast<BlockPtr*>(context);
  return block_at(static_cast<const char*>(data.get()));  // a storage that shares the memory of another one
}

}  // namespace stand_in
