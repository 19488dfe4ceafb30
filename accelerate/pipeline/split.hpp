// SPDX-License-Identifier: Apache-2.0
// Division of layers into stages of about equal cost, and of a batch into micro-batches: values.
#pragma once

#include <cstdint>
#include <vector>

namespace accelerate::pipeline {

/// Divides consecutive layers into stages so that the most expensive stage is as cheap as possible. Every stage has at
/// least one layer. Among equal divisions, earlier stages are larger. Pure function. Thread-safe.
///
/// \param costs   Cost of each layer in any unit, [L]; finite and at least 0.
/// \param stages  Number of stages S, 1 to L.
/// \returns       Number of layers of each stage, [S].
/// \throws Error (usage) if there are fewer layers than stages, or if a cost is negative or not finite.
[[nodiscard]] std::vector<int64_t> balanced_split(const std::vector<double>& costs, int64_t stages);

/// Numbers of rows of the micro-batches, which differ by at most one row; later micro-batches are the smaller ones. A
/// batch with fewer rows than micro-batches has one micro-batch per row.
///
/// \param rows           Rows of the batch, at least 1.
/// \param micro_batches  At least 1.
/// \throws Error (usage) if a number is less than 1.
[[nodiscard]] std::vector<int64_t> micro_batch_rows(int64_t rows, int64_t micro_batches);

}  // namespace accelerate::pipeline
