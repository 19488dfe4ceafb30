// SPDX-License-Identifier: Apache-2.0
// A system that is at its limit of threads.
#pragma once

namespace faults {

/// The next `count` threads can be started, then none.
void refuse_threads_after(int count);

}  // namespace faults
