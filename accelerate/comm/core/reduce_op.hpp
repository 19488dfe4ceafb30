// SPDX-License-Identifier: Apache-2.0
// What a reduction computes, and when an operation is carried out: the words that users and backends share.
#pragma once

namespace accelerate::comm {

enum class ReduceOp { sum, mean, max, min, product };

/// deferred: the caller waits immediately, and all ranks wait for their operations in the same order. A backend may
/// then execute the operation in the waiting thread.
enum class Execution { eager, deferred };

}  // namespace accelerate::comm
