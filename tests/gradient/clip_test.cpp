// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/clip.hpp"

#include <limits>

#include "tests/testing.hpp"

using namespace accelerate::gradient;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// Parameters with gradients; the third has none.
std::vector<at::Tensor> parameters(double scale, at::ScalarType dtype = at::kDouble) {
  torch::manual_seed(5);
  std::vector<at::Tensor> all;
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{3, 4}, {7}, {2}, {5, 1}}) {
    all.push_back(torch::zeros(shape, torch::dtype(dtype).requires_grad(true)));
    if (all.size() != 3) all.back().mutable_grad() = torch::randn(shape, dtype) * scale;
  }
  return all;
}

at::Tensor flat_gradient(const std::vector<at::Tensor>& from) {
  std::vector<at::Tensor> parameter_shards;
  for (const at::Tensor& parameter : from) {
    if (parameter.grad().defined()) parameter_shards.push_back(parameter.grad().reshape({-1}));
  }
  return torch::cat(parameter_shards);
}

}  // namespace

TEST_CASE("clip_norm_of equals LibTorch's, on parameters and on one flat bucket") {
  for (const double norm_type : {1.0, 2.0, 3.5, kInf}) {
    for (const double max_norm : {0.5, 1000.0}) {
      CAPTURE(norm_type);
      CAPTURE(max_norm);
      const auto ours = parameters(2.0);
      const auto theirs = parameters(2.0);
      const at::Tensor flat = flat_gradient(ours);
      const at::Tensor norm = clip_norm_of(dense_gradients(ours), max_norm, norm_type);
      const double expected = torch::nn::utils::clip_grad_norm_(theirs, max_norm, norm_type);
      CHECK(norm.dim() == 0);
      CHECK(norm.item<double>() == doctest::Approx(expected).epsilon(1e-12));
      CHECK(torch::allclose(flat_gradient(ours), flat_gradient(theirs), 1e-12, 0));
      const at::Tensor flat_norm = clip_norm_of({flat}, max_norm, norm_type);
      CHECK(flat_norm.item<double>() == doctest::Approx(expected).epsilon(1e-12));
      CHECK(torch::allclose(flat, flat_gradient(theirs), 1e-12, 0));
    }
  }
}

TEST_CASE("gradients below the limit keep every bit") {
  const auto ours = parameters(1e-3);
  const at::Tensor before = flat_gradient(ours).clone();
  clip_norm_of(dense_gradients(ours), 1.0);
  CHECK(torch::equal(before, flat_gradient(ours)));
}

TEST_CASE("an infinite limit only measures, also an infinite norm") {
  const auto ours = parameters(2.0);
  for (const double element : {1.0, kInf}) {
    ours[1].mutable_grad()[2] = element;
    const at::Tensor before = flat_gradient(ours).clone();
    CHECK(torch::allclose(clip_norm_of(dense_gradients(ours), kInf), before.norm()));
    CHECK(torch::equal(before, flat_gradient(ours)));
  }
}

TEST_CASE("bfloat16 and float32 gradients have one norm in float32") {
  auto mixed = parameters(2.0, at::kFloat);
  const auto half = parameters(3.0, at::kBFloat16);
  mixed.insert(mixed.end(), half.begin(), half.end());
  std::vector<at::Tensor> parameter_shards;
  for (const at::Tensor& parameter : mixed) {
    if (parameter.grad().defined()) parameter_shards.push_back(parameter.grad().reshape({-1}).to(at::kDouble));
  }
  const at::Tensor norm = clip_norm_of(dense_gradients(mixed), 1.0);
  CHECK((norm.scalar_type() == at::kFloat));
  CHECK(norm.item<double>() == doctest::Approx(torch::cat(parameter_shards).norm().item<double>()).epsilon(1e-6));
  CHECK((mixed.back().grad().scalar_type() == at::kBFloat16));
  CHECK(clip_norm_of(dense_gradients(mixed), 100.0).item<double>() == doctest::Approx(1.0).epsilon(1e-2));
}

TEST_CASE("complex gradients count by their absolute values, beside real ones too") {
  auto both = parameters(2.0, at::kFloat);
  const auto complex = parameters(2.0, at::kComplexDouble);
  both.insert(both.end(), complex.begin(), complex.end());
  double squares = 0;
  for (const at::Tensor& parameter : both) {
    if (parameter.grad().defined()) squares += parameter.grad().abs().to(at::kDouble).pow(2).sum().item<double>();
  }
  const at::Tensor norm = clip_norm_of(dense_gradients(both), 1.0);
  CHECK((norm.scalar_type() == at::kDouble));
  CHECK(norm.item<double>() == doctest::Approx(std::sqrt(squares)).epsilon(1e-6));
  CHECK((both.back().grad().scalar_type() == at::kComplexDouble));
  CHECK(norm_of(dense_gradients(both)).item<double>() == doctest::Approx(1.0).epsilon(1e-5));
  CHECK((norm_of(dense_gradients(parameters(1.0, at::kComplexFloat))).scalar_type() == at::kFloat));
}

TEST_CASE("a sparse gradient counts by its coalesced values and stays sparse") {
  auto embedding = torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 3).sparse(true));
  embedding->weight.mutable_grad().reset();
  embedding(torch::tensor({1, 1, 4})).sum().backward();
  REQUIRE(embedding->weight.grad().is_sparse());
  const double expected = embedding->weight.grad().to_dense().norm().item<double>();
  const std::vector<at::Tensor> all{embedding->weight};
  CHECK(clip_norm_of(dense_gradients(all), 1.0).item<double>() == doctest::Approx(expected));
  CHECK(embedding->weight.grad().is_sparse());
  CHECK(embedding->weight.grad().to_dense().norm().item<double>() == doctest::Approx(1.0).epsilon(1e-5));
  clip_value_of(dense_gradients(all), 0.01);
  CHECK(embedding->weight.grad().to_dense().abs().max().item<double>() == doctest::Approx(0.01));
}

TEST_CASE("the norm is zero without any gradient") {
  CHECK(clip_norm_of(dense_gradients({torch::zeros({2}, torch::requires_grad())}), 1.0).item<double>() == 0.0);
  CHECK(clip_norm_of({}, 1.0).item<double>() == 0.0);
}

TEST_CASE("clip_value_of clamps like LibTorch's, on parameters and on one flat bucket") {
  const auto ours = parameters(2.0);
  const auto theirs = parameters(2.0);
  const at::Tensor flat = flat_gradient(ours);
  clip_value_of(dense_gradients(ours), 0.7);
  clip_value_of({flat}, 0.7);
  torch::nn::utils::clip_grad_value_(theirs, 0.7);
  CHECK(torch::equal(flat_gradient(ours), flat_gradient(theirs)));
  CHECK(torch::equal(flat, flat_gradient(theirs)));
}

TEST_CASE("scale_gradients multiplies the existing gradients") {
  const auto ours = parameters(1.0);
  const at::Tensor before = flat_gradient(ours).clone();
  scale_gradients(ours, 2.0);
  CHECK(torch::equal(before * 2, flat_gradient(ours)));
  CHECK_FALSE(ours[2].grad().defined());
}

TEST_CASE("invalid limits are refused with the value in the message") {
  CHECK_THROWS_WITH(clip_norm_of({}, -1.0),
                    "clip_grad_norm_: max_norm is -1, must be at least 0; infinity only measures");
  CHECK_THROWS_WITH(clip_norm_of({}, 1.0, 0.0),
                    "clip_grad_norm_: norm_type is 0, must be above 0 (infinity is allowed)");
  CHECK_THROWS_WITH(clip_norm_of({}, 1.0, -1.0),
                    "clip_grad_norm_: norm_type is -1, must be above 0 (infinity is allowed)");
  CHECK_THROWS_WITH(norm_of({}, -1.0), "clip_grad_norm_: norm_type is -1, must be above 0 (infinity is allowed)");
  CHECK_THROWS_WITH(clip_value_of({}, -0.5), "clip_grad_value_: value is -0.5, must be at least 0");
}
