// SPDX-License-Identifier: Apache-2.0
// Private: a matrix of gradients and its two low-rank factors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace accelerate::gradient {

/// m [rows, columns] of gradients, approximated by p [rows, r] times q [columns, r] transposed.
struct LowRankMatrix {
  at::Tensor m{};
  /// Gradients with their positions in m; empty if m is the gradients' own memory.
  std::vector<std::pair<at::Tensor, at::Tensor>> copies{};
  at::Tensor p{}, q{};
  std::string name{};  ///< indices of its parameters in the model
  bool warm = false;   ///< true if q is from the previous reduction
  at::Tensor error{};  ///< shape of m: the compression error; undefined without error feedback

  void load() const;
  void store() const;
};

/// Number of columns of the factors, at most the number of rows and columns of the matrix.
[[nodiscard]] int64_t columns_of_factors(int64_t rows, int64_t columns, int64_t rank);

/// \param matrix  [n, r] with r <= n; its columns become orthonormal for any input, including zeros.
void orthogonalise(const at::Tensor& matrix);

/// Fills the matrix with numbers from N(0, 1), equal on every rank, and makes its columns orthonormal.
void fill_at_random(const at::Tensor& matrix, uint64_t seed);

}  // namespace accelerate::gradient
