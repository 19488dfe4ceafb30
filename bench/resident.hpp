// SPDX-License-Identifier: Apache-2.0
// Resident memory of this process on Linux with glibc; bench/peers/resident.py reads the same numbers.
#pragma once

#include <functional>

namespace bench {

/// Returns VmRSS in bytes, after malloc returned its free memory to the system.
double resident_bytes();

/// Returns resident_bytes() after `work`.
double resident_bytes_after(const std::function<void()>& work);

/// Returns the greatest VmRSS during `work`, in bytes: VmHWM, which /proc/self/clear_refs resets before.
double peak_bytes_of(const std::function<void()>& work);

}  // namespace bench
