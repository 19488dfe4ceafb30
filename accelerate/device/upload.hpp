// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies of host tensors to an accelerator.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace accelerate::device {

class Upload;

/// A copy stream of one accelerator, and the pinned staging buffers that its copies read.
///
/// A staging buffer is reused after its copy has completed, so there are as many as concurrent uploads. Not
/// thread-safe. Must outlive its uploads.
class UploadStream {
 public:
  /// \param device  Accelerator device with an index.
  explicit UploadStream(c10::Device device);
  /// The host waits for pending copies.
  ~UploadStream();
  UploadStream(const UploadStream&) = delete;
  UploadStream& operator=(const UploadStream&) = delete;

  /// Starts one copy per tensor without blocking the host.
  ///
  /// Pinned tensors are read in place and kept alive until their copies complete; others have been copied to pinned
  /// memory when the call returns. Tensors that are already on a device, require a gradient, or are sparse or quantized
  /// are left to Upload::take().
  /// \throws c10::OutOfMemoryError if the device has no memory; no copy was started then.
  [[nodiscard]] Upload begin(const std::vector<at::Tensor>& tensors);

 private:
  friend class Upload;
  /// Source memory of the copies of one upload.
  struct Staging;
  [[nodiscard]] Staging& free_staging();

  c10::Device device_;
  c10::Stream stream_;
  c10::Event memory_free_;
  std::vector<std::unique_ptr<Staging>> stagings_;
};

/// Pending copies of one call of UploadStream::begin(). It may be destroyed before arrive().
class Upload {
 public:
  Upload(Upload&&) noexcept = default;
  Upload& operator=(Upload&&) = delete;
  ~Upload();

  /// Makes the current stream wait for the copies; the host does not wait. Call it once, before take().
  void arrive();
  /// Call once for each tensor of begin(), in that order.
  /// \returns the tensor on the device. A tensor that was left out, or that is not the one given to begin(), is copied
  ///   on the current stream now.
  [[nodiscard]] at::Tensor take(const at::Tensor& tensor);

 private:
  friend class UploadStream;
  struct Release {
    void operator()(UploadStream::Staging* staging) const noexcept;
  };
  Upload(c10::Device device, c10::Stream home, std::vector<at::Tensor> sources, std::vector<at::Tensor> targets)
      : device_(device), home_(home), sources_(std::move(sources)), targets_(std::move(targets)) {}

  c10::Device device_;
  c10::Stream home_;  // current stream at begin(); it owns the targets' memory
  std::vector<at::Tensor> sources_;
  std::vector<at::Tensor> targets_;                            // undefined for tensors that are left to take()
  std::unique_ptr<UploadStream::Staging, Release> staging_{};  // null after arrive(), or if there are no copies
  size_t taken_ = 0;
};

}  // namespace accelerate::device
