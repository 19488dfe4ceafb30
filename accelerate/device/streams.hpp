// SPDX-License-Identifier: Apache-2.0
// Private: streams and events of any accelerator.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace accelerate::device {

/// Returns the stream of the device on which operators of this thread run.
[[nodiscard]] inline c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// Returns a stream of LibTorch's pool, for work beside the current stream.
[[nodiscard]] inline c10::Stream stream_of_pool(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

/// Returns an event after the work that was started on the stream.
[[nodiscard]] inline c10::Event event_on(const c10::Stream& stream) {
  c10::Event event(stream.device_type());
  event.record(stream);
  return event;
}

}  // namespace accelerate::device
