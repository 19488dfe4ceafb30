// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/padding.hpp"

#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <utility>

namespace accelerate::prepared {
namespace {

/// For interleaved samples: row i of rank r is row i * ranks + r of the global batch, and the last rows are padding.
std::vector<int64_t> valid_rows(int64_t rows, int64_t real, int64_t ranks) {
  const int64_t each = rows / ranks;
  std::vector<int64_t> kept;
  for (int64_t row = 0; row < rows; ++row) {
    if (row % each * ranks + row / each < real) kept.push_back(row);
  }
  return kept;
}

bool is_densely_strided(int64_t rows, const state::BatchInfo& last, int64_t ranks) {
  return last.strided && rows % ranks == 0;
}

}  // namespace

at::Tensor drop_padding(const at::Tensor& gathered, const state::BatchInfo& last, int64_t ranks) {
  const int64_t rows = gathered.size(0);
  if (rows <= last.remainder) return gathered;
  if (!is_densely_strided(rows, last, ranks)) return gathered.narrow(0, 0, last.remainder);
  const auto kept = at::tensor(valid_rows(rows, last.remainder, ranks), at::kLong);
  return gathered.index_select(0, kept.to(gathered.device()));
}

std::vector<std::string> drop_padding(std::vector<std::string> gathered, const state::BatchInfo& last, int64_t ranks) {
  const auto rows = static_cast<int64_t>(gathered.size());
  if (rows <= last.remainder) return gathered;
  if (!is_densely_strided(rows, last, ranks)) {
    gathered.resize(static_cast<size_t>(last.remainder));
    return gathered;
  }
  std::vector<std::string> real;
  for (const int64_t row : valid_rows(rows, last.remainder, ranks)) {
    real.push_back(std::move(gathered[static_cast<size_t>(row)]));
  }
  return real;
}

}  // namespace accelerate::prepared
