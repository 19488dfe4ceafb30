// SPDX-License-Identifier: Apache-2.0
// Copies device numbers to the host asynchronously.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>

namespace accelerate::precision {

/// A pending copy to the host, ordered after earlier work of the device's current stream. CPU tensors are available
/// immediately.
class AsyncScalarRead {
 public:
  /// \param numbers  Float32, contiguous.
  explicit AsyncScalarRead(const at::Tensor& numbers);

  /// True if the copy has completed; does not wait.
  [[nodiscard]] bool arrived() const;
  /// Blocks until the copy has completed.
  void wait() const;
  /// Valid after the copy has completed.
  [[nodiscard]] float operator[](int64_t index) const { return host_.const_data_ptr<float>()[index]; }

 private:
  at::Tensor host_;
  std::optional<c10::Event> copied_{};
};

}  // namespace accelerate::precision
