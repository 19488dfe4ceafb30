// SPDX-License-Identifier: Apache-2.0
// Memory use of this process and its accelerator.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace accelerate::profile {

/// Figures in bytes. Those of the accelerator are from LibTorch's allocator and are 0 on the CPU. Peaks count from the
/// start of the process, or from reset_peak_memory().
struct MemoryFigures {
  int64_t allocated_bytes = 0;  ///< in use by tensors
  int64_t peak_allocated_bytes = 0;
  int64_t reserved_bytes = 0;  ///< obtained from the device: tensors and cached blocks
  int64_t peak_reserved_bytes = 0;
  int64_t resident_bytes = 0;  ///< resident set size of the process
  int64_t peak_resident_bytes = 0;

  bool operator==(const MemoryFigures&) const = default;
};

/// Does not wait for the device.
[[nodiscard]] MemoryFigures memory_figures(c10::Device device);

/// Resets the peaks. The resident peak is kept if the system does not permit a reset.
void reset_peak_memory(c10::Device device);

/// Returns cached memory of LibTorch's allocator to the device. May wait for the device.
void empty_cache(c10::Device device);

/// Returns "allocated 1.5 GiB (peak 2.0 GiB), reserved 2.1 GiB (peak 2.1 GiB), resident 812 MiB (peak 1.1 GiB)";
/// without an accelerator only the resident figures.
[[nodiscard]] std::string memory_text(const MemoryFigures& memory);

}  // namespace accelerate::profile
