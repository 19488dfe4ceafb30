// SPDX-License-Identifier: Apache-2.0
#include "accelerate/device/failed_allocation.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cstdint>
#include <exception>

#include "accelerate/base/bytes_text.hpp"

namespace accelerate::device {

class FailedAllocation::Observer final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t, size_t, size_t, c10::Device) override {}
  void reportOutOfMemory(int64_t bytes, size_t allocated, size_t reserved, c10::Device device) override {
    // The CPU's allocator reports while it handles its own error; others report before they throw.
    failure_ = is_handled_here() ? std::current_exception()
                                 : std::make_exception_ptr(error_of(bytes, allocated, reserved, device));
  }
  // The CPU's allocator reports a failure only if this is true. It must be false for successful allocations, because
  // the allocator would count them.
  [[nodiscard]] bool memoryProfilingEnabled() const override { return is_handled_here(); }

  [[nodiscard]] const std::exception_ptr& failure() const { return failure_; }

 private:
  [[nodiscard]] bool is_handled_here() const {
    const std::exception_ptr handled = std::current_exception();
    return handled != nullptr && handled != handled_before_;
  }
  static c10::OutOfMemoryError error_of(int64_t bytes, size_t allocated, size_t reserved, c10::Device device) {
    return {{__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
            fmt::format("{} out of memory. Tried to allocate {} on {}, which has {} allocated and {} reserved",
                        c10::DeviceTypeName(device.type()), base::bytes_text(bytes), device.str(),
                        base::bytes_text(static_cast<int64_t>(allocated)),
                        base::bytes_text(static_cast<int64_t>(reserved)))};
  }

  std::exception_ptr handled_before_ = std::current_exception();
  std::exception_ptr failure_;
};

FailedAllocation::FailedAllocation() : observer_(std::make_shared<Observer>()) {
  // A profiler's state is used as its own type by LibTorch, so it is not replaced.
  if (c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE) != nullptr) return;
  guard_.emplace(c10::DebugInfoKind::PROFILER_STATE, observer_);
}

void FailedAllocation::rethrow() const {
  if (const auto& failure = observer_->failure()) std::rethrow_exception(failure);
}

}  // namespace accelerate::device
