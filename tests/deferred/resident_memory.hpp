// SPDX-License-Identifier: Apache-2.0
// Memory of this process as the kernel counts it, with pages of mapped files.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace testing {

/// In bytes. `field` is a line of /proc/self/status.
inline int64_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (word != field + ":") continue;
    int64_t kilobytes = 0;
    status >> kilobytes;
    return kilobytes * 1024;
  }
  return 0;
}

/// Begins a new measurement of the peak. Returns the present memory.
inline int64_t start_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
  return status_bytes("VmRSS");
}

inline int64_t peak_bytes() { return status_bytes("VmHWM"); }

}  // namespace testing
