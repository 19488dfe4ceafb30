// SPDX-License-Identifier: Apache-2.0
// A scope with autocast on or off.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace accelerate::precision {

struct AutocastRegion {
  c10::DeviceType device = c10::DeviceType::CPU;
  c10::ScalarType dtype = c10::ScalarType::BFloat16;
  /// If false, operations use the dtypes of their inputs, even inside an outer region.
  bool enabled = true;
  /// If true, casts of weights are cached until the outermost region ends.
  bool cache = true;
};

/// Equivalent of Python's torch.autocast for this thread. Regions nest; leaving one, also by an exception, restores the
/// previous state. LibTorch caches low-precision copies of float32 weights within a region, and the outermost end drops
/// them. Code that changes weights inside a region must call drop_cached_casts(), as prepared optimizers do.
class [[nodiscard]] Autocast {
 public:
  /// If unset, nothing changes.
  explicit Autocast(const std::optional<AutocastRegion>& region);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  std::optional<AutocastRegion> before_{};
};

void drop_cached_casts();

}  // namespace accelerate::precision
