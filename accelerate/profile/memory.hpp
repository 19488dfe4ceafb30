// SPDX-License-Identifier: Apache-2.0
// How much memory this process and its accelerator hold.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace accelerate::profile {

/// Bytes. Those of the accelerator are LibTorch's allocator's and 0 on the CPU; peaks are since the process began, or
/// since reset_peak_memory().
struct MemoryFigures {
  int64_t allocated_bytes = 0;  ///< by tensors
  int64_t peak_allocated_bytes = 0;
  int64_t reserved_bytes = 0;  ///< obtained from the device: tensors and cached blocks
  int64_t peak_reserved_bytes = 0;
  int64_t resident_bytes = 0;  ///< of the process, in the machine's memory
  int64_t peak_resident_bytes = 0;

  bool operator==(const MemoryFigures&) const = default;
};

/// No wait for the device.
[[nodiscard]] MemoryFigures memory_of(c10::Device device);

/// Peaks begin anew. Where the system does not let the process do that, its resident peak stays.
void reset_peak_memory(c10::Device device);

/// What LibTorch's allocator keeps for the next tensors goes back to the device. May wait for the device.
void empty_cache(c10::Device device);

/// Returns "allocated 1.5 GiB (peak 2.0 GiB), reserved 2.1 GiB (peak 2.1 GiB), resident 812 MiB (peak 1.1 GiB)";
/// without an accelerator only the resident figures.
[[nodiscard]] std::string memory_text(const MemoryFigures& memory);

}  // namespace accelerate::profile
