// SPDX-License-Identifier: Apache-2.0
#include "accelerate/device/seed.hpp"

#include <cstdlib>

#include "tests/testing.hpp"

namespace device = accelerate::device;
using accelerate::ErrorKind;

namespace {

std::string refusal_of_state(const at::Tensor& state) {
  try {
    device::set_rng_state(c10::kCPU, state, {.rank = 1, .world_size = 2, .host = "a"});
  } catch (const accelerate::Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    return error.what();
  }
  return "no error";
}

/// Random numbers of a rank directly after set_seed.
at::Tensor draws(uint64_t seed, const device::SeedOptions& options, int64_t rank) {
  device::set_seed(seed, options, rank);
  return torch::rand({8});
}

}  // namespace

TEST_CASE("a seed produces PyTorch's numbers") {
  device::seed_all(42);
  CHECK(torch::randperm(10).equal(torch::tensor({2, 6, 1, 8, 4, 5, 0, 9, 3, 7})));
}

TEST_CASE("one seed produces the same numbers on every rank, so parameters start equal") {
  CHECK(draws(7, {}, 0).equal(draws(7, {}, 3)));
}

TEST_CASE("device_specific seeds with seed + rank, so ranks draw different numbers") {
  const auto rank3 = draws(7, {.device_specific = true}, 3);
  CHECK(rank3.equal(draws(10, {}, 0)));
  CHECK_FALSE(rank3.equal(draws(7, {.device_specific = true}, 2)));
  CHECK(device::rank_seed(7, 3) == 10);
}

TEST_CASE("parameters start equal and dropout differs if a rank's own stream begins after the model") {
  const auto model_then_dropout = [](int64_t rank) {
    device::set_seed(7, {}, rank);
    torch::nn::Linear net(4, 4);
    device::seed_all(device::rank_seed(7, rank));
    return std::pair{net->weight, torch::dropout(torch::ones({64}), 0.5, true)};
  };
  const auto [weight0, dropped0] = model_then_dropout(0);
  const auto [weight1, dropped1] = model_then_dropout(1);
  CHECK(weight0.equal(weight1));
  CHECK_FALSE(dropped0.equal(dropped1));
}

TEST_CASE("a generator continues from a saved state") {
  device::seed_all(1);
  torch::rand({3});
  const auto state = device::rng_state(c10::kCPU);
  CHECK((state.scalar_type() == at::kByte));
  CHECK(state.sizes().vec() == std::vector<int64_t>{5056});
  const auto expected = torch::randn({5});
  device::seed_all(2);
  device::set_rng_state(c10::kCPU, state);
  CHECK(torch::randn({5}).equal(expected));
}

TEST_CASE("a state of another kind is refused with both shapes") {
  CHECK(refusal_of_state(torch::zeros({16}, torch::kByte)) ==
        "[rank 1 of 2, a] set_rng_state: state is Byte [16], must be Byte [5056] on the CPU for cpu");
  CHECK(refusal_of_state(torch::zeros({5056})) ==
        "[rank 1 of 2, a] set_rng_state: state is Float [5056], must be Byte [5056] on the CPU for cpu");
  CHECK(refusal_of_state({}) ==
        "[rank 1 of 2, a] set_rng_state: state is undefined, must be Byte [5056] on the CPU for cpu");
}

TEST_CASE("deterministic mode sets LibTorch's flags and keeps the user's workspace setting") {
  setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8", 1);
  device::set_seed(1, {.deterministic = true}, 0);
  CHECK(at::globalContext().deterministicAlgorithms());
  CHECK_FALSE(at::globalContext().deterministicAlgorithmsWarnOnly());
  CHECK(at::globalContext().deterministicCuDNN());
  CHECK_FALSE(at::globalContext().benchmarkCuDNN());
  CHECK(std::string(std::getenv("CUBLAS_WORKSPACE_CONFIG")) == ":16:8");

  unsetenv("CUBLAS_WORKSPACE_CONFIG");
  device::set_deterministic(true);
  CHECK(std::string(std::getenv("CUBLAS_WORKSPACE_CONFIG")) == ":4096:8");

  device::set_deterministic(false);
  unsetenv("CUBLAS_WORKSPACE_CONFIG");
  CHECK_FALSE(at::globalContext().deterministicAlgorithms());
  device::set_seed(1, {}, 0);
  CHECK_FALSE(at::globalContext().deterministicAlgorithms());
}
