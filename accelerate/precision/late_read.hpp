// SPDX-License-Identifier: Apache-2.0
// Numbers of a device that the host reads later, when they have arrived.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>

namespace accelerate::precision {

/// A pending copy to the host, ordered after earlier work of the device's current stream. CPU tensors are available
/// immediately.
class LateRead {
 public:
  /// \param numbers  Float32, contiguous.
  explicit LateRead(const at::Tensor& numbers);

  /// Whether it is there; does not wait.
  [[nodiscard]] bool arrived() const;
  /// Until it is there; the host waits only where it is not.
  void wait() const;
  /// Valid once arrived.
  [[nodiscard]] float operator[](int64_t index) const { return host_.const_data_ptr<float>()[index]; }

 private:
  at::Tensor host_;
  std::optional<c10::Event> copied_{};
};

}  // namespace accelerate::precision
