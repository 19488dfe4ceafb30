// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/hooks/low_rank.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/randn.h>

#include <algorithm>

namespace accelerate::gradient {

void LowRankMatrix::load() const {
  if (!copies.empty()) m.zero_();
  for (const auto& [outside, inside] : copies) inside.copy_(outside, /*non_blocking=*/true);
}

void LowRankMatrix::store() const {
  for (const auto& [outside, inside] : copies) outside.copy_(inside, /*non_blocking=*/true);
}

int64_t columns_of_factors(int64_t rows, int64_t columns, int64_t rank) { return std::min({rows, columns, rank}); }

// LAPACK's QR does not support 16-bit types.
void orthogonalise(const at::Tensor& matrix) {
  const bool narrow = matrix.element_size() < 4;
  const auto q = std::get<0>(at::linalg_qr(narrow ? matrix.to(at::kFloat) : matrix, "reduced"));
  matrix.copy_(q, /*non_blocking=*/true);
}

void fill_at_random(const at::Tensor& matrix, uint64_t seed) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  matrix.copy_(at::randn(matrix.sizes(), generator, at::kDouble));
  orthogonalise(matrix);
}

}  // namespace accelerate::gradient
