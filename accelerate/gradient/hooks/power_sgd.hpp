// SPDX-License-Identifier: Apache-2.0
// PowerSGD: gradients of matrices travel as two thin factors.
#pragma once

#include <cstdint>

#include "accelerate/gradient/bucket_reducer.hpp"

namespace accelerate::gradient {

/// Names and defaults are those of PyTorch's PowerSGDState.
struct PowerSgdOptions {
  /// Columns of the factors. More is more exact, and more bytes.
  int64_t matrix_approximation_rank = 1;
  /// Reductions before this one are plain: gradients are large at first, and errors then do most harm.
  int64_t start_step = 1000;
  /// A matrix goes as factors where they are smaller by at least this; else, and for vectors, as it is.
  double min_compression_rate = 2;
  /// What a rank's gradient lost is added to its next one.
  bool use_error_feedback = true;
  /// Each step's factor is where the next step begins. Off: at random, with a seed from random_seed.
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

/// The whole bucket as one square matrix: less work and fewer bytes than power_sgd_hook, and less exact; PyTorch's
/// batched_powerSGD_hook. min_compression_rate does not count.
[[nodiscard]] CommHook batched_power_sgd_hook(const PowerSgdOptions& options = {});

/// Numbers that a bucket's parameters cost per reduction once it is compressed: the formula, for planning and tests.
[[nodiscard]] int64_t power_sgd_numbers(at::ArrayRef<at::IntArrayRef> shapes, const PowerSgdOptions& options);

}  // namespace accelerate::gradient
