// SPDX-License-Identifier: Apache-2.0
#include "accelerate/device/factor.hpp"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <limits>
#include <vector>

using accelerate::device::Factor;

namespace {

// Bits, so that NaN equals NaN.
bool equal_bits(const at::Tensor& left, const at::Tensor& right) {
  const auto bits = [](const at::Tensor& tensor) {
    return tensor.resolve_neg().contiguous().reshape({-1}).view(torch::kByte);
  };
  return left.dtype() == right.dtype() && torch::equal(bits(left), bits(right));
}

}  // namespace

TEST_CASE("Factor::multiply() has the bits of mul_out() for any dtype, layout and size") {
  const torch::NoGradGuard no_grad;
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const auto shared = torch::randn({4, 6});
  const std::vector<at::Tensor> sources{torch::randn({7, 5}),
                                        torch::randn({7, 5}, torch::kDouble),
                                        torch::randn({7, 5}).to(torch::kBFloat16),
                                        torch::randn({7, 5}).to(torch::kHalf),
                                        torch::randn({5, 7}).t(),
                                        torch::randn({8, 9}).narrow(1, 2, 3),
                                        torch::randn({5}).expand({3, 5}),
                                        torch::randn({2, 3, 4, 5}).to(at::MemoryFormat::ChannelsLast),
                                        torch::randn({40000}),
                                        torch::randn({0, 3}),
                                        torch::tensor(3.5),
                                        torch::tensor({nan, inf, -inf, 0.0, -0.0, 1e-310}),
                                        torch::tensor({nan, inf, -inf, 0.0, -0.0, 1e-310}).to(torch::kFloat),
                                        torch::imag(torch::conj(torch::randn({6}, torch::kComplexFloat))),
                                        torch::randn({6}, torch::kComplexDouble),
                                        shared};
  for (const double value : {1.0 / 3, 0.5, 0.0, -2.0}) {
    const Factor factor(value);
    CHECK(factor.value() == value);
    for (const at::Tensor& source : sources) {
      CAPTURE(value);
      CAPTURE(source.toString());
      CAPTURE(source.sizes());
      for (const bool same_strides : {true, false}) {
        auto target = same_strides ? torch::empty_like(source) : torch::full(source.sizes(), 7, source.options());
        auto expected = torch::empty_like(target);
        at::mul_out(expected, source, factor.tensor());
        const auto version = target._version();
        factor.multiply(source, target);
        CHECK(equal_bits(target, expected));
        CHECK(target._version() > version);  // autograd notices the write
      }
    }
  }
  auto same = shared.clone();
  Factor(0.5).multiply(same, same);
  CHECK(torch::equal(same, shared * 0.5));
}
