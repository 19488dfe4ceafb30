// SPDX-License-Identifier: Apache-2.0
// A system at its limit of threads.
#pragma once

namespace faults {

/// Allows the next `count` threads to start; all later ones fail.
void refuse_threads_after(int count);

}  // namespace faults
