// SPDX-License-Identifier: Apache-2.0
// LibTorch's requirements of a device beyond tensors, and its registration.
#include "tests/stand_in/install.hpp"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>

#include <cstdlib>
#include <cstring>
#include <iterator>

#include "tests/stand_in/generator.hpp"
#include "tests/stand_in/tensors.hpp"
#include "tests/stand_in/world.hpp"

namespace stand_in {
namespace {

/// Host memory that the device may read and write asynchronously.
class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    auto* const data = static_cast<char*>(std::aligned_alloc(64, (bytes + 64) / 64 * 64));
    ++world().pinned_allocations;
    const std::lock_guard lock(world().mutex);
    world().pinned[data] = bytes + 1;
    return {data, data, &release, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

 private:
  static void release(void* data) {
    const std::lock_guard lock(world().mutex);
    const auto known = world().pinned.find(static_cast<char*>(data));
    std::memset(data, 0xff, known->second - 1);  // makes later reads visible
    world().pinned.erase(known);
    std::free(data);  // NOLINT: of aligned_alloc
  }
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { exchange_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override { return exchange_device(device); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchange_device(device); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(or_current(device));
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override { return new_generator(or_current(device)); }
  at::Device getDeviceFromPtr(void*) const override { return {kType, current_device()}; }
  bool isPinnedPtr(const void* data) const override {
    const std::lock_guard lock(world().mutex);
    const auto* const at = static_cast<const char*>(data);
    const auto next = world().pinned.upper_bound(at);
    if (next == world().pinned.begin()) return false;
    const auto& [start, bytes] = *std::prev(next);
    return at < start + bytes;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static auto* one = new PinnedMemory;
    return one;
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, bytes);
  }

 private:
  static c10::DeviceIndex or_current(c10::DeviceIndex device) { return device < 0 ? current_device() : device; }
};

}  // namespace

void install_hooks() { at::RegisterPrivateUse1HooksInterface(new Hooks); }

void install(int devices, size_t bytes_of_each) {
  auto& all = world();
  TORCH_CHECK(all.memory.empty() && devices > 0 && devices <= kMaxDevices, "standin: installed once, with 1 to ",
              kMaxDevices, " devices");
  for (int i = 0; i < devices * kStreams; ++i) all.queues.push_back(std::make_unique<Queue>());
  all.limit.assign(static_cast<size_t>(devices), bytes_of_each);
  all.owned.resize(static_cast<size_t>(devices));
  for (int i = 0; i < devices; ++i) all.generators.push_back(new_generator(static_cast<c10::DeviceIndex>(i)));
  all.memory.resize(static_cast<size_t>(devices));
  c10::register_privateuse1_backend("standin");
  c10::SetAllocator(kType, &device_memory());
  install_guard();
  install_hooks();
  install_backend();
  install_graphs();
}

}  // namespace stand_in
