// SPDX-License-Identifier: Apache-2.0
#include "accelerate/nn/checksum.hpp"

#include "tests/testing.hpp"
//
#include <limits>

using accelerate::nn::checksum;

namespace {

int64_t sum_of(const at::Tensor& tensor) { return checksum(tensor).item<int64_t>(); }

}  // namespace

TEST_CASE("one different value, in any position and dtype, changes the sum") {
  for (const auto dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort,
                           at::kByte, at::kBool, at::kComplexDouble, at::kComplexFloat}) {
    CAPTURE(dtype);
    const at::Tensor zeros = torch::zeros({3, 5}, dtype);
    for (int64_t i = 0; i < zeros.numel(); ++i) {
      const at::Tensor other = zeros.clone();
      other.view({-1})[i] = 1;
      CHECK(sum_of(other) != sum_of(zeros));
    }
    CHECK(sum_of(zeros) == sum_of(zeros.clone()));
  }
}

TEST_CASE("swapped values change the sum, powers of two as well") {
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const at::Tensor powers = torch::pow(2.0, torch::arange(-60, 60, at::kDouble)).to(dtype);
    const int64_t sum = sum_of(powers);
    for (int64_t i = 0; i < powers.numel(); ++i) {
      for (int64_t j = 0; j < i; ++j) {
        const at::Tensor swapped = powers.clone();
        swapped[i] = powers[j];
        swapped[j] = powers[i];
        REQUIRE(sum_of(swapped) != sum);
      }
    }
  }
}

TEST_CASE("bits count, not values: 0.0 differs from -0.0, and a NaN equals only itself") {
  const auto one = [](double value) { return torch::full({2}, value, at::kFloat); };
  CHECK(sum_of(one(0.0)) != sum_of(one(-0.0)));
  const at::Tensor nan = one(std::numeric_limits<double>::quiet_NaN());
  CHECK(sum_of(nan) == sum_of(nan.clone()));
  const at::Tensor other = nan.clone();
  other.view(at::kInt)[0].add_(1);
  CHECK(other.isnan().all().item<bool>());
  CHECK(sum_of(other) != sum_of(nan));
}

TEST_CASE("strides do not count; long rows, empty and sparse tensors are supported") {
  const at::Tensor table = torch::rand({4, 3});
  CHECK(sum_of(table.t()) == sum_of(table.t().contiguous()));
  CHECK(sum_of(table.t()) != sum_of(table));
  const at::Tensor large = torch::rand({(1 << 20) + 5});
  for (const int64_t place : {0, (1 << 20) - 1, 1 << 20, (1 << 20) + 4}) {
    const at::Tensor other = large.clone();
    other[place].add_(1);
    CHECK(sum_of(other) != sum_of(large));
  }
  CHECK(sum_of(torch::cat({large.slice(0, 1 << 20), large.slice(0, 0, 1 << 20)})) != sum_of(large));
  CHECK(sum_of(torch::zeros({0})) == 0);
  const at::Tensor sparse = torch::eye(3).to_sparse();
  CHECK(sum_of(sparse) == sum_of(sparse.clone()));
  CHECK(sum_of(sparse) != sum_of(sparse * 2));
}

TEST_CASE("a parameter keeps its version and graph") {
  const at::Tensor parameter = torch::ones({3}).requires_grad_(true);
  CHECK_FALSE(checksum(parameter).requires_grad());
  CHECK(parameter._version() == 0);
}
