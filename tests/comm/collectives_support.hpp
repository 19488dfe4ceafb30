// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <vector>

#include "accelerate/comm/group.hpp"
#include "tests/testing.hpp"

namespace {

using accelerate::comm::Group;
using accelerate::comm::ReduceOp;

/// Small whole numbers that differ between ranks and elements: exact in every dtype.
inline at::Tensor input_of(int64_t rank, at::IntArrayRef sizes, at::ScalarType dtype) {
  const auto count = c10::multiply_integers(sizes);
  const auto numbers = (at::arange(count, at::kLong) * 3 + rank) % 5 + 1;
  return (dtype == at::kBool ? numbers > 2 : numbers.to(dtype)).view(sizes);
}

inline at::Tensor noise(int64_t rank, at::IntArrayRef sizes) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(rank) + 17);
  return at::randn(sizes, generator);
}

inline at::Tensor reduced(const Group& group, at::IntArrayRef sizes, at::ScalarType dtype, ReduceOp op) {
  at::Tensor result = input_of(0, sizes, dtype);
  for (int64_t r = 1; r < group.size(); ++r) {
    const auto other = input_of(r, sizes, dtype);
    result = op == ReduceOp::max       ? at::maximum(result, other)
             : op == ReduceOp::min     ? at::minimum(result, other)
             : op == ReduceOp::product ? result * other
                                       : result + other;
  }
  return op == ReduceOp::mean ? result / group.size() : result;
}

template <typename F>
at::Tensor rows_of_all(const Group& group, const F& rows_of) {
  std::vector<at::Tensor> rows;
  for (int64_t r = 0; r < group.size(); ++r) rows.push_back(rows_of(r));
  return at::cat(rows);
}

}  // namespace
