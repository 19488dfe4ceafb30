// SPDX-License-Identifier: Apache-2.0
// Devices, streams and events through c10's interfaces.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <chrono>
#include <future>

#include "tests/stand_in/graph.hpp"
#include "tests/stand_in/install.hpp"
#include "tests/stand_in/world.hpp"

namespace stand_in {
namespace {

using Now = std::chrono::steady_clock;

/// One record() of an event.
struct Recording {
  std::atomic<bool> done{false};
  std::promise<void> promise;
  std::shared_future<void> reached{promise.get_future()};
  Clock clock;
  CapturePtr capture;  ///< set for a capturing stream: the event was not reached, and will not be
  c10::DeviceIndex device = 0;
  Now::time_point time;
};
using Recorded = std::shared_ptr<Recording>;

const Recorded& recorded(void* event) { return *static_cast<Recorded*>(event); }

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }

  c10::Device exchangeDevice(c10::Device device) const override { return {kType, exchange_device(device.index())}; }
  c10::Device getDevice() const override { return {kType, current_device()}; }
  void setDevice(c10::Device device) const override { exchange_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { exchange_device(device.index()); }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }

  c10::Stream getStream(c10::Device device) const override { return current_stream(index_of(device)); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_at(index_of(device), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return next_pool_stream(index_of(device));
  }
  c10::Stream getNewStream(c10::Device device, int) const override { return next_pool_stream(index_of(device)); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  bool queryStream(const c10::Stream& stream) const override { return queue_of(stream).idle(); }
  void synchronizeStream(const c10::Stream& stream) const override { host_wait(stream); }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    host_wait(stream_at(device, 0));
    for (int i = 1; i < kStreams; ++i) wait_for(stream_at(device, i));
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    device_memory().recordStream(data, stream);
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Recorded;  // NOLINT: destroyEvent() deletes it
    auto recording = std::make_shared<Recording>();
    recording->device = stream.device_index();
    const std::lock_guard lock(world().mutex);
    if ((recording->capture = capture_of(number_of(stream)))) {
      recording->clock = recording->capture->streams[number_of(stream)];
      *static_cast<Recorded*>(*event) = std::move(recording);
      return;
    }
    auto& queue = queue_of(stream);
    const auto job = queue.push([recording] {
      recording->time = Now::now();
      recording->done = true;
      recording->promise.set_value();
    });
    recording->clock = queue.seen;
    recording->clock.raise(number_of(stream), job);
    *static_cast<Recorded*>(*event) = std::move(recording);
  }

  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const std::lock_guard lock(world().mutex);
    if (recorded(event)->capture)
      return join_capture(number_of(stream), recorded(event)->capture, recorded(event)->clock);
    TORCH_CHECK(capture_of(number_of(stream)) == nullptr,
                "standin: a capturing stream cannot wait for work outside the capture");
    auto& queue = queue_of(stream);
    queue.seen.join(recorded(event)->clock);
    queue.push([recording = recorded(event)] { recording->reached.wait(); });
  }

  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    refuse_while_recording("a question about an event");
    if (!recorded(event)->done) return false;
    const std::lock_guard lock(world().mutex);
    world().host.join(recorded(event)->clock);  // a successful query counts as a wait
    return true;
  }

  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    refuse_while_recording("a wait of the host");
    TORCH_CHECK(!recorded(event)->capture, "standin: an event of a capture cannot be waited for");
    count_host_wait(recorded(event)->device);
    recorded(event)->reached.wait();
    queryEvent(event);
  }

  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Recorded*>(event);  // NOLINT: of record()
  }

  double elapsedTime(void* first, void* second, c10::DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(recorded(second)->time - recorded(first)->time).count();
  }

 private:
  static c10::DeviceIndex index_of(c10::Device device) {
    return device.has_index() ? device.index() : current_device();
  }
};

}  // namespace

void install_guard() { c10::impl::registerDeviceGuard(kType, new Guard); }

}  // namespace stand_in
