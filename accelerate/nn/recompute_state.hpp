// SPDX-License-Identifier: Apache-2.0
// Private: thread state of a forward besides tensors, captured in forward and restored in backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>
#include <vector>

namespace accelerate::nn {

/// Random generators and autocast of this thread, and the owner of objects that its functions refer to.
struct ForwardState {
  struct Autocast {
    at::DeviceType type;
    bool enabled;
    at::ScalarType dtype;
  };
  std::vector<std::pair<at::Device, at::Tensor>> generators;
  std::vector<Autocast> autocast;
  std::shared_ptr<void> owner;

  /// Captures autocast of the CPU and the accelerator and, on request, the generators of the CPU and the tensors'
  /// devices.
  static ForwardState now(const std::vector<at::Tensor>& tensors, bool with_generators);
  /// The current values of the same parts.
  [[nodiscard]] ForwardState capture_same_parts() const;
  void set() const;
};

/// During its lifetime autocast caches no weights: the graph of a weight cast outside would be missing in the second
/// run.
class NoAutocastCache {
 public:
  NoAutocastCache();
  ~NoAutocastCache();
  NoAutocastCache(const NoAutocastCache&) = delete;
  NoAutocastCache& operator=(const NoAutocastCache&) = delete;

 private:
  bool was_on_;
};

/// During its lifetime the captured state applies, and recomputing() is true.
class RecomputeScope {
 public:
  explicit RecomputeScope(const ForwardState& first);
  ~RecomputeScope();
  RecomputeScope(const RecomputeScope&) = delete;
  RecomputeScope& operator=(const RecomputeScope&) = delete;

 private:
  ForwardState before_;
  NoAutocastCache no_cache_;
  bool was_recomputing_;
};

}  // namespace accelerate::nn
