// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>

#include "accelerate/accelerator.hpp"
#include "accelerate/trainer/state.hpp"

namespace accelerate::trainer {

/// Returns metrics in bytes with transformers' names. {prefix}_mem_cpu_alloc_delta is the growth of the process's
/// memory; {prefix}_mem_cpu_peaked_delta is the temporary peak above the final size. "gpu" has the same for the
/// accelerator's tensors.
/// \param after  Its peaks must have been reset at `before`.
[[nodiscard]] inline Metrics memory_metrics(const std::string& prefix, const MemoryFigures& before,
                                            const MemoryFigures& after, bool on_accelerator) {
  Metrics metrics;
  const auto add = [&](const char* where, int64_t had, int64_t has, int64_t peak) {
    metrics[prefix + "_mem_" + where + "_alloc_delta"] = static_cast<double>(has - had);
    metrics[prefix + "_mem_" + where + "_peaked_delta"] = static_cast<double>(std::max<int64_t>(0, peak - has));
  };
  add("cpu", before.resident_bytes, after.resident_bytes, after.peak_resident_bytes);
  if (on_accelerator) add("gpu", before.allocated_bytes, after.allocated_bytes, after.peak_allocated_bytes);
  return metrics;
}

/// Changes of this rank's memory since construction.
/// \note Construction resets the peaks of Accelerator::memory() for all its users.
class MemoryDelta {
 public:
  explicit MemoryDelta(const Accelerator& accelerator) : accelerator_(accelerator) {
    accelerator_.reset_peak_memory();
    before_ = accelerator_.memory();
  }
  [[nodiscard]] Metrics metrics(const std::string& prefix) const {
    return memory_metrics(prefix, before_, accelerator_.memory(), !accelerator_.device().is_cpu());
  }

 private:
  const Accelerator& accelerator_;
  MemoryFigures before_;
};

}  // namespace accelerate::trainer
