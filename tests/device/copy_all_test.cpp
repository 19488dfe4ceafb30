// SPDX-License-Identifier: Apache-2.0
#include "accelerate/device/copy_all.hpp"

#include <doctest/doctest.h>
#include <torch/torch.h>

using accelerate::device::copy_all;
using accelerate::device::CopyPair;

TEST_CASE("copy_all() writes every tensor, for any size, layout, dtype and memory offset") {
  constexpr int64_t large = (int64_t{9} << 20) / 4 + 3;  // more than two blocks of float32
  const auto source = torch::randn({large});
  const auto square = torch::randn({2048, 1024});
  std::vector<CopyPair> pairs{
      {torch::zeros({large}), source},
      {torch::zeros({large}, torch::kDouble), source},
      {torch::zeros({1024, 2048}).t(), square},
      {torch::zeros({2048, 1024}), torch::randn({1024, 2048}).t()},
      {torch::zeros({3}), torch::arange(3)},
      {torch::zeros({}), torch::tensor(5.0)},
      {torch::zeros({0}), torch::zeros({0})},
      {torch::zeros({large}), torch::imag(torch::conj(torch::randn({large}, torch::kComplexFloat)))},
      {source, source}};
  const auto before = source.clone();
  copy_all(pairs);
  for (size_t i = 0; i < pairs.size(); ++i) {
    CAPTURE(i);
    CHECK(torch::equal(pairs[i].to, pairs[i].from.to(pairs[i].to.scalar_type())));
  }
  CHECK(torch::equal(source, before));
}

TEST_CASE("the last of two values for one memory remains") {
  constexpr int64_t large = 2 << 20;
  const auto to = torch::zeros({large});
  copy_all({{to, torch::ones({large})}, {to.view({2, -1}), torch::full({2, large / 2}, 2.0F)}});
  CHECK(to.eq(2).all().item<bool>());
}

TEST_CASE("a leaf that requires grad is written, and autograd detects the change") {
  constexpr int64_t large = 2 << 20;
  auto weight = torch::zeros({large}, torch::requires_grad());
  auto loss = (weight * weight).sum();
  copy_all({{weight, torch::ones({large})}});
  CHECK(weight.requires_grad());
  CHECK_THROWS_WITH_AS(loss.backward(), doctest::Contains("modified by an inplace operation"), c10::Error);
}
