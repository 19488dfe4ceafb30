// SPDX-License-Identifier: Apache-2.0
// Each rank has a part of the gradients: one common norm, and one common overflow flag.
#include <cmath>
#include <limits>

#include "accelerate/gradient/clip.hpp"
#include "accelerate/gradient/non_finite.hpp"
#include "accelerate/precision/grad_scaler.hpp"
#include "tests/gradient/support.hpp"

using namespace accelerate::gradient;
using namespace gradient_testing;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Rank 0 has one gradient in float64, rank 1 two in float32, rank 2 none.
std::vector<at::Tensor> part_of(int64_t rank) {
  if (rank == 0) return {numbers({7}, 1)};
  if (rank == 1) return {numbers({3, 2}, 2, at::kFloat), numbers({5}, 3, at::kFloat)};
  return {};
}

at::Tensor whole() {
  std::vector<at::Tensor> flat;
  for (int64_t rank = 0; rank < 3; ++rank) {
    for (const at::Tensor& tensor : part_of(rank)) flat.push_back(tensor.to(at::kDouble).flatten());
  }
  return torch::cat(flat);
}

void on_three_ranks(const std::function<void(const Group&)>& test) { accelerate::comm::run_threads(3, test, kTimeout); }

}  // namespace

TEST_CASE("shards are clipped by their total norm, also on ranks without a shard") {
  for (const double norm_type : {1.0, 2.0, 3.5, kInfinity}) {
    const double expected = torch::linalg_vector_norm(whole(), norm_type).item<double>();
    on_three_ranks([&](const Group& group) {
      CAPTURE(norm_type);
      const auto mine = part_of(group.rank());
      const at::Tensor norm = clip_norm_of(mine, 0.5, norm_type, &group);
      CHECK(norm.item<double>() == doctest::Approx(expected).epsilon(1e-6));
      const auto before = part_of(group.rank());
      for (size_t i = 0; i < mine.size(); ++i) CHECK(torch::allclose(mine[i], before[i] * 0.5 / expected, 1e-5));
    });
  }
}

TEST_CASE("the norm is not finite on any rank if one rank's shard is not") {
  for (const double bad : {kInfinity, -kInfinity, std::nan("")}) {
    on_three_ranks([&](const Group& group) {
      auto mine = part_of(group.rank());
      if (group.rank() == 1) mine[1][2] = bad;
      CHECK_FALSE(std::isfinite(norm_of(mine, 2.0, &group).item<double>()));
      CHECK_FALSE(std::isfinite(norm_of(mine, kInfinity, &group).item<double>()));
    });
  }
}

TEST_CASE("the norm needs one all-reduce of one number") {
  on_three_ranks([](const Group& group) {
    const auto mine = part_of(group.rank());
    if (group.rank() == 2) {
      group.all_reduce(torch::zeros({}, at::kDouble));
    } else {
      CHECK(clip_norm_of(mine, 1.0, 2.0, &group).item<double>() > 0);
    }
    group.barrier();
  });
}

TEST_CASE("ranges of a gradient are unscaled in place; inf or NaN in one is detected on every rank") {
  for (const double bad : {0.0, kInfinity, -kInfinity, std::nan("")}) {
    on_three_ranks([&](const Group& group) {
      CAPTURE(bad);
      const bool overflows = bad != 0;
      at::Tensor whole = torch::arange(10, at::kFloat);
      if (overflows) whole[6] = bad;  // an element of rank 1
      const std::vector<int64_t> bounds{0, 4, 10, 10};
      const int64_t begin = bounds.at(static_cast<size_t>(group.rank()));
      const int64_t end = bounds.at(static_cast<size_t>(group.rank()) + 1);
      const accelerate::state::ParameterShard mine{.name = "w",
                                                   .sizes = {10},
                                                   .begin = begin,
                                                   .end = end,
                                                   .value = torch::zeros({end - begin}),
                                                   .gradient = whole.slice(0, begin, end).clone()};
      std::vector<accelerate::state::ParameterShard> parameter_shards{mine};
      const accelerate::precision::GradScaler scaler({}, at::kCPU, {});
      const auto four = torch::full({}, 4.0);
      const bool seen_here = scaler.unscale(dense_gradients(parameter_shards), four).item<float>() > 0;
      CHECK(seen_here == (overflows && group.rank() == 1));
      if (!seen_here) CHECK(torch::equal(mine.gradient, torch::arange(begin, end, at::kFloat) / 4));
      CHECK((scaler.unscale(dense_gradients(parameter_shards), four, &group).item<float>() > 0) == overflows);
    });
  }
}

TEST_CASE("parameter shards return their gradients, sparse ones coalesced") {
  const at::Tensor table = torch::zeros({4, 2}, torch::requires_grad());
  const at::Tensor plain = torch::zeros({3}, torch::requires_grad()), unused = torch::zeros({3});
  const auto indices = torch::tensor({{1, 1}}), values = torch::ones({2, 2});
  table.mutable_grad() = torch::sparse_coo_tensor(indices, values, {4, 2});
  plain.mutable_grad() = torch::full({3}, 2.0);
  std::vector<accelerate::state::ParameterShard> parameter_shards;
  for (const at::Tensor& parameter : {table, plain, unused}) {
    parameter_shards.push_back(accelerate::state::whole_parameter("p", parameter));
  }
  const auto gradients = dense_gradients(parameter_shards);
  REQUIRE(gradients.size() == 2);
  CHECK(norm_of(gradients).item<double>() == doctest::Approx(std::sqrt(2 * 4.0 + 3 * 4.0)));
  clip_value_of(gradients, 0.5);
  CHECK(table.grad().to_dense()[1][0].item<double>() == 0.5);
  CHECK(plain.grad()[0].item<double>() == 0.5);
}

TEST_CASE("a norm that is not finite is reported with the parameter's name") {
  const at::Tensor first = torch::zeros({3}, torch::requires_grad()),
                   second = torch::zeros({2, 2}, torch::requires_grad());
  first.mutable_grad() = torch::ones({3});
  second.mutable_grad() = torch::ones({2, 2});
  const at::Tensor unused = torch::zeros({5}, torch::requires_grad());  // has no gradient, so it does not count
  std::vector<accelerate::state::ParameterShard> parameter_shards{
      accelerate::state::whole_parameter("unused", unused), accelerate::state::whole_parameter("fc.weight", first),
      accelerate::state::whole_parameter("fc.bias", second)};
  const auto norm = [&] { return norm_of(dense_gradients(parameter_shards)); };
  require_finite(norm(), parameter_shards, {});
  second.mutable_grad()[0][1] = std::nan("");
  CHECK_THROWS_WITH(
      require_finite(norm(), parameter_shards, {}),
      "clip_grad_norm_: the norm of the gradients is nan: 1 of 2 gradients are not finite, the first that "
      "of fc.bias in 1 of its 4 elements; lower the learning rate, or switch error_if_nonfinite off to "
      "clip by it anyway");
  first.mutable_grad().fill_(kInfinity);
  second.mutable_grad().fill_(1);
  CHECK_THROWS_WITH(
      require_finite(norm(), parameter_shards, {}),
      "clip_grad_norm_: the norm of the gradients is inf: 1 of 2 gradients are not finite, the first that "
      "of fc.weight in 3 of its 3 elements; lower the learning rate, or switch error_if_nonfinite off to "
      "clip by it anyway");
  first.mutable_grad().fill_(3e38);
  CHECK_THROWS_WITH(
      require_finite(norm_of(dense_gradients(parameter_shards), 1.0), parameter_shards, {}),
      "clip_grad_norm_: the norm of the gradients is inf, though each of the 2 is finite: it is above what "
      "Float holds; lower the learning rate or the loss, or switch error_if_nonfinite off to clip by it "
      "anyway");
}
