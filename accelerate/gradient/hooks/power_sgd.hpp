// SPDX-License-Identifier: Apache-2.0
// PowerSGD: sends gradients of matrices as two low-rank factors.
#pragma once

#include <cstdint>

#include "accelerate/gradient/bucket_reducer.hpp"

namespace accelerate::gradient {

/// Names and defaults are those of PyTorch's PowerSGDState.
struct PowerSgdOptions {
  /// Number of columns of the factors. A higher rank is more exact and sends more bytes.
  int64_t matrix_approximation_rank = 1;
  /// Number of first reductions without compression, because gradients are large at first, and errors do most harm
  /// then.
  int64_t start_step = 1000;
  /// Minimum ratio of matrix size to factor size. Smaller ratios, and vectors, are sent uncompressed.
  double min_compression_rate = 2;
  /// If true, the compression error of a rank's gradient is added to its next gradient.
  bool use_error_feedback = true;
  /// If true, each step starts from the previous step's factor, otherwise from random numbers with a seed from
  /// random_seed.
  bool warm_start = true;
  uint64_t random_seed = 0;
};

/// Treats each parameter [n, ...] as a matrix of n rows. Vogels et al., PowerSGD (arXiv:1905.13727), algorithm 1, as in
/// PyTorch's powerSGD_hook. The factors are orthogonalised by QR in float32 or float64, so that zero gradients are
/// safe.
///
/// Bytes: with rank r a matrix [n, m] costs (n + m) * r numbers instead of n * m. Memory: one copy of the compressed
/// gradients for error feedback, and the factors. The state (error and last factor of each matrix, and the step count)
/// is saved in checkpoints; a job with another number of ranks continues without the errors, which are local to a rank.
/// \throws Error (usage) if an option is out of range.
[[nodiscard]] CommHook power_sgd_hook(const PowerSgdOptions& options = {});

/// PyTorch's batched_powerSGD_hook: treats the whole bucket as one square matrix. This needs less work and fewer bytes
/// than power_sgd_hook, and is less exact. min_compression_rate is ignored.
[[nodiscard]] CommHook batched_power_sgd_hook(const PowerSgdOptions& options = {});

/// Number of elements that a bucket's parameters send per compressed reduction, for planning and tests.
[[nodiscard]] int64_t power_sgd_numbers(at::ArrayRef<at::IntArrayRef> shapes, const PowerSgdOptions& options);

}  // namespace accelerate::gradient
