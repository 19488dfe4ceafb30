// SPDX-License-Identifier: Apache-2.0
// Private: copies the parameters of a unit from host memory or a file to memory of a device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <array>
#include <optional>
#include <vector>

#include "accelerate/offload/weight_source.hpp"

namespace accelerate::offload {

/// Memory of a unit on the device, and the streams that use it.
struct UnitMemory {
  at::Tensor bytes{};                   // uint8
  std::vector<c10::Stream> streams{};   // these waited for the copy and run operators
  std::vector<c10::Event> last_uses{};  // of the previous unit
  std::optional<c10::Event> copied{};   // unset on the CPU
};

/// Where the values of a unit are.
struct UnitContent {
  struct Part {
    WeightSource source{};
    size_t offset = 0, bytes = 0;  // in the memory of the unit
    c10::ScalarType dtype = c10::ScalarType::Float;
  };
  std::vector<Part> parts{};
  size_t bytes = 0;
  at::Tensor pinned{};  // all values in pinned memory, if they are on the CPU and the device is not
};

/// Copies units, one at a time. copy() is called by one thread; the caller serialises the other functions.
class UnitCopies {
 public:
  explicit UnitCopies(c10::Device device);
  ~UnitCopies();
  UnitCopies(const UnitCopies&) = delete;
  UnitCopies& operator=(const UnitCopies&) = delete;

  [[nodiscard]] UnitMemory allocate(size_t bytes) const;
  /// Moves values on the CPU to pinned memory, from which a device can copy them without the host.
  void pin(UnitContent& content) const;
  /// Starts the copy, after the last uses of the memory.
  void copy(const UnitContent& content, UnitMemory& memory);
  /// Makes the current stream of the calling thread wait for the copy.
  void wait_on_current_stream(UnitMemory& memory) const;
  /// Records the end of the operators that were started on the memory.
  void end_use(UnitMemory& memory) const;
  /// Must be called before memory is freed.
  void before_free(const UnitMemory& memory) const;
  /// Waits for the copies. Must be called before pinned memory of a unit is freed: others reuse it immediately.
  void finish() noexcept;

 private:
  struct Staging {
    at::Tensor pinned{};  // uint8
    std::optional<c10::Event> copied{};
  };
  Staging& next_staging(size_t bytes);

  c10::Device device_;
  std::optional<c10::Stream> stream_{};  // unset on the CPU
  std::array<Staging, 2> stagings_{};
  size_t next_ = 0;
};

}  // namespace accelerate::offload
