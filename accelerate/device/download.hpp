// SPDX-License-Identifier: Apache-2.0
// Tensors of accelerators on their way to the host, while the host goes on.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <list>

namespace accelerate::device {

/// Copies on a stream of their own, one of each device. Movable; whoever drops it before finish() leaves its copies in
/// order, but does not know when they are over.
class Download {
 public:
  /// Begins to copy; the host does not wait.
  ///
  /// target   of the source's shape and dtype, in pinned memory; not read or freed before arrive()
  /// source   on an accelerator, dense; what its current stream did before comes first
  void begin(const at::Tensor& target, const at::Tensor& source);
  /// All are begun: what the current streams do from here on comes after the copies, so that the sources may be changed
  /// and freed. The host does not wait. Once.
  void finish();
  /// The host waits for all copies; from any thread, after finish().
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
