// SPDX-License-Identifier: Apache-2.0
// What a reduction computes, and when an operation is carried out: the words that users and backends share.
#pragma once

namespace accelerate::comm {

enum class ReduceOp { sum, mean, max, min, product };

/// deferred: the caller will wait at once, all ranks for their operations in one order, so that a backend may leave the
/// work to the thread that waits.
enum class Execution { eager, deferred };

}  // namespace accelerate::comm
