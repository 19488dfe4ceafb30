// SPDX-License-Identifier: Apache-2.0
// Reductions and execution modes, shared by users and backends.
#pragma once

namespace accelerate::comm {

enum class ReduceOp { sum, mean, max, min, product };

/// deferred: the caller waits immediately, and all ranks wait for their operations in the same order. A backend may
/// then execute the operation in the waiting thread.
enum class Execution { eager, deferred };

}  // namespace accelerate::comm
