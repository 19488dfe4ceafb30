// SPDX-License-Identifier: Apache-2.0
#include "accelerate/device/download.hpp"

#include <c10/core/StreamGuard.h>

#include "accelerate/device/streams.hpp"

namespace accelerate::device {

Download::Lane::Lane(c10::Device on) : device(on), stream(stream_of_pool(on)), ready(on.type()), copied(on.type()) {}

Download::Lane& Download::lane_of(c10::Device device) {
  for (Lane& lane : lanes_) {
    if (lane.device == device) return lane;
  }
  return lanes_.emplace_back(device);
}

void Download::begin(const at::Tensor& target, const at::Tensor& source) {
  Lane& lane = lane_of(source.device());
  lane.ready.record(current_stream(lane.device));
  lane.ready.block(lane.stream);
  const c10::StreamGuard guard(lane.stream);
  target.copy_(source, /*non_blocking=*/true);
  source.record_stream(lane.stream);  // its memory may belong to another stream
}

void Download::finish() {
  for (Lane& lane : lanes_) {
    lane.copied.record(lane.stream);
    lane.copied.block(current_stream(lane.device));
  }
}

void Download::arrive() {
  for (Lane& lane : lanes_) lane.copied.synchronize();
}

}  // namespace accelerate::device
