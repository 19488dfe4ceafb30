// SPDX-License-Identifier: Apache-2.0
// Private: the fused kernel of linear_cross_entropy, compiled by NVRTC at its first use on a device.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "accelerate/nn/kernels/cross_entropy_arguments.hpp"
#include "accelerate/nn/runtime_compiler.hpp"

namespace accelerate::nn {

/// Computes losses of rows of logits and replaces the logits by their gradient.
class CrossEntropyKernel {
 public:
  CrossEntropyKernel() = default;
  virtual ~CrossEntropyKernel() = default;
  CrossEntropyKernel(const CrossEntropyKernel&) = delete;
  CrossEntropyKernel& operator=(const CrossEntropyKernel&) = delete;

  /// Queues the kernel on the current stream of its device. Thread-safe.
  ///
  /// \param dtype  dtype of the logits: float32, bfloat16 or float16.
  /// \param rows   At least 1.
  /// \throws Error (device) if the driver cannot queue the kernel.
  virtual void launch(const CrossEntropyArguments& arguments, at::ScalarType dtype, int64_t rows) const = 0;
};

/// The kernels of all devices. Thread-safe.
class CrossEntropyKernels {
 public:
  /// Function that loads the kernel of a device. It may return null.
  using Make = std::function<std::unique_ptr<CrossEntropyKernel>(c10::Device)>;

  explicit CrossEntropyKernels(Make make) : make_(std::move(make)) {}

  /// Returns the kernel of the device, which the first call for the device loads. Null if it cannot be loaded: an
  /// exception is logged once as a warning, and the kernel is not loaded again.
  [[nodiscard]] const CrossEntropyKernel* of(c10::Device device);

 private:
  Make make_;
  std::mutex mutex_;
  std::map<c10::DeviceIndex, std::unique_ptr<CrossEntropyKernel>> made_;
};

/// Whether the kernel is requested: `option`, otherwise ACCELERATE_FUSED_CROSS_ENTROPY, otherwise false.
/// \throws Error (environment) if the variable is not a boolean.
[[nodiscard]] bool fused_cross_entropy_requested(const std::optional<bool>& option);

/// Returns the kernel for logits of this dtype on the device; null on other devices than CUDA, for other dtypes, and if
/// it cannot be loaded. The first call for a device loads the kernel: from the disk in milliseconds, otherwise it is
/// compiled in about a second.
[[nodiscard]] const CrossEntropyKernel* cross_entropy_kernel(c10::Device device, at::ScalarType dtype);

/// Number of threads of a block: a power of two, about 16 bytes of logits or more for each thread.
[[nodiscard]] unsigned int cross_entropy_threads(int64_t classes, at::ScalarType dtype);

/// What NVRTC compiles. Only in builds with CUDA.
[[nodiscard]] KernelSource cross_entropy_source();

}  // namespace accelerate::nn
