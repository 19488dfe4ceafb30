// SPDX-License-Identifier: Apache-2.0
// A scope in which LibTorch computes in lower precision, or does not.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace accelerate::precision {

struct AutocastRegion {
  c10::DeviceType device = c10::DeviceType::CPU;
  c10::ScalarType dtype = c10::ScalarType::BFloat16;
  /// False: within it operations take their inputs' dtypes, although a region around it is on.
  bool enabled = true;
  /// Casts of weights are kept until the outermost region ends.
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
