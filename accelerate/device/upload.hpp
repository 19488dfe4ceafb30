// SPDX-License-Identifier: Apache-2.0
// Tensors of the host on their way to an accelerator, while the host and the device's other streams go on.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace accelerate::device {

class Upload;

/// To one accelerator: a stream for copies, and the pinned memory that they read.
///
/// Pinned memory is used again once its copy is over; there is as much of it as copies are under way at a time. Not for
/// use from several threads at once; outlives its uploads.
class UploadLane {
 public:
  /// \param device  Accelerator device with an index.
  explicit UploadLane(c10::Device device);
  /// The host waits for copies that are under way.
  ~UploadLane();
  UploadLane(const UploadLane&) = delete;
  UploadLane& operator=(const UploadLane&) = delete;

  /// Starts one copy per tensor without blocking the host.
  ///
  /// Pinned tensors are read in place and kept alive until their copies complete; others have been copied to pinned
  /// memory when the call returns. Tensors that are already on a device, require a gradient, or are sparse or quantized
  /// are left to Upload::take().
  /// \throws c10::OutOfMemoryError if the device has no memory; no copy was started then.
  [[nodiscard]] Upload begin(const std::vector<at::Tensor>& tensors);

 private:
  friend class Upload;
  /// What the copies of one upload read.
  struct Staging;
  [[nodiscard]] Staging& free_staging();

  c10::Device device_;
  c10::Stream stream_;
  c10::Event memory_free_;
  std::vector<std::unique_ptr<Staging>> stagings_;
};

/// Tensors under way. One that is dropped before it arrived leaves its memory in order.
class Upload {
 public:
  Upload(Upload&&) noexcept = default;
  Upload& operator=(Upload&&) = delete;
  ~Upload();

  /// The current stream waits for the copies, the host does not. Once, before take().
  void arrive();
  /// Call once for each tensor of begin(), in that order.
  /// \returns the tensor on the device. A tensor that was left out, or that is not the one given to begin(), is copied
  /// on
  ///          the current stream now.
  [[nodiscard]] at::Tensor take(const at::Tensor& tensor);

 private:
  friend class UploadLane;
  struct Release {
    void operator()(UploadLane::Staging* staging) const noexcept;
  };
  Upload(c10::Device device, c10::Stream home, std::vector<at::Tensor> sources, std::vector<at::Tensor> targets)
      : device_(device), home_(home), sources_(std::move(sources)), targets_(std::move(targets)) {}

  c10::Device device_;
  c10::Stream home_;  // current when it began: the targets' memory is of that stream
  std::vector<at::Tensor> sources_;
  std::vector<at::Tensor> targets_;                          // undefined: did not ride along
  std::unique_ptr<UploadLane::Staging, Release> staging_{};  // none: nothing rode, or it has arrived
  size_t taken_ = 0;
};

}  // namespace accelerate::device
