// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies of accelerator tensors to the host.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <list>

namespace accelerate::device {

/// Copies on separate streams, one per device. Movable. If it is destroyed before finish(), the copies still complete
/// in order, but their completion is not observable.
class Download {
 public:
  /// Starts a copy without blocking the host.
  ///
  /// \param target  Pinned memory with the source's shape and dtype; must not be read or freed before arrive().
  /// \param source  Dense tensor on an accelerator. The copy follows earlier work of its current stream.
  void begin(const at::Tensor& target, const at::Tensor& source);
  /// Call once after all copies have started. Later work on the current streams follows the copies, so the sources may
  /// then be modified and freed. Does not block the host.
  void finish();
  /// The host waits for all copies. Call it after finish(), from any thread.
  void arrive();

 private:
  struct Lane {
    explicit Lane(c10::Device on);
    c10::Device device;
    c10::Stream stream;
    c10::Event ready, copied;
  };
  Lane& lane_of(c10::Device device);

  std::list<Lane> lanes_;
};

}  // namespace accelerate::device
