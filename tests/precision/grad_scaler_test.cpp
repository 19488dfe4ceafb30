// SPDX-License-Identifier: Apache-2.0
#include "accelerate/precision/grad_scaler.hpp"

#include "tests/testing.hpp"
//
#include <nlohmann/json.hpp>

#include "accelerate/comm/group.hpp"
#include "accelerate/precision/async_scalar_read.hpp"
#include "accelerate/precision/scaler_state_json.hpp"

using accelerate::precision::GradScaler;
using accelerate::precision::GradScalerOptions;
using accelerate::precision::ScalerState;
namespace precision = accelerate::precision;

namespace {

const accelerate::RankContext kHere{.rank = 1, .world_size = 2, .host = "gpu-b"};
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

GradScaler scaler_of(const GradScalerOptions& options) { return {options, at::kCPU, kHere}; }

float found_in(const std::vector<at::Tensor>& gradients, double scale = 4.0) {
  return scaler_of({}).unscale(gradients, torch::full({}, scale)).item<float>();
}

std::string refusal_of_options(const GradScalerOptions& options) {
  try {
    precision::check_grad_scaler_options(options, kHere);
  } catch (const accelerate::Error& error) {
    CHECK(error.kind() == accelerate::ErrorKind::usage);
    return error.what();
  }
  return "taken";
}

}  // namespace

TEST_CASE("the defaults equal torch.amp.GradScaler's") {
  CHECK(
      scaler_of({}).state() ==
      ScalerState{
          .scale = 65536.0, .growth_factor = 2.0, .backoff_factor = 0.5, .growth_interval = 2000, .growth_tracker = 0});
}

TEST_CASE("gradients are divided by the scale in place, for several dtypes and layouts") {
  const auto plain = torch::full({3}, 8.0);
  const auto doubles = torch::full({2, 2}, 2.0, torch::kDouble);
  const auto low = torch::full({2}, 4.0, torch::kBFloat16);
  const auto transposed = torch::arange(6, torch::kFloat).reshape({2, 3}).t();
  CHECK(found_in({plain, doubles, low, transposed, torch::empty({0})}) == 0);
  CHECK(at::equal(plain, torch::full({3}, 2.0)));
  CHECK(at::equal(doubles, torch::full({2, 2}, 0.5, torch::kDouble)));
  CHECK(at::equal(low, torch::ones({2}, torch::kBFloat16)));
  CHECK(at::equal(transposed, torch::arange(6, torch::kFloat).reshape({2, 3}).t() / 4));
  CHECK(found_in({}) == 0);
}

TEST_CASE("inf or NaN on one rank of a group counts on every rank, with one all-reduce of one number") {
  accelerate::comm::run_threads(3, [](const accelerate::comm::Group& group) {
    const auto scaler = scaler_of({});
    const auto four = torch::full({}, 4.0);
    if (group.rank() == 2) {  // the same calls without gradients keep the rank synchronised
      group.all_reduce(torch::zeros({}));
      const auto found = torch::zeros({});
      group.all_reduce(found);
      CHECK(found.item<float>() > 0);
      return;
    }
    const auto mine = torch::full({3}, 8.0);
    CHECK(scaler.unscale({mine}, four, &group).item<float>() == 0);
    CHECK(at::equal(mine, torch::full({3}, 2.0)));
    if (group.rank() == 1) mine[1] = kNan;
    CHECK(scaler.unscale({mine}, four, &group).item<float>() > 0);
    CHECK((scaler.unscale({mine}, four).item<float>() > 0) == (group.rank() == 1));
  });
}

TEST_CASE("flags are summed over a group, and the input does not change") {
  accelerate::comm::run_threads(3, [](const accelerate::comm::Group& group) {
    const auto flags = torch::tensor({group.rank() == 1 ? 1.0F : 0.0F, 1.0F});
    CHECK(at::equal(precision::summed_over(group, flags), torch::tensor({1.0F, 3.0F})));
    CHECK(flags[1].item<float>() == 1);
  });
}

TEST_CASE("inf and NaN are found in any gradient, large finite values are not") {
  CHECK(found_in({torch::ones({3}), torch::tensor({1.0F, kInf})}) == 1);
  CHECK(found_in({torch::tensor({kNan}), torch::ones({3})}) == 1);
  CHECK(found_in({torch::tensor({-kInf}, torch::kDouble), torch::ones({3})}) == 1);
  CHECK(found_in({torch::full({1}, std::numeric_limits<float>::max())}) == 0);
}

TEST_CASE("the division uses PyTorch's float64 reciprocal if the float32 reciprocal is rounded") {
  const auto gradient = torch::full({1}, 7.0);
  found_in({gradient}, 3.0);
  CHECK(gradient.item<float>() == 7.0F * static_cast<float>(1.0 / 3.0));
}

TEST_CASE("gradients in float16 are refused") {
  CHECK_THROWS_WITH(
      found_in({torch::ones({2, 3}, torch::kHalf)}),
      "[rank 1 of 2, gpu-b] unscale: a gradient of shape [2, 3] is float16, must be float32; fp16 computes in float16 "
      "automatically: keep the model's parameters in float32 (model->to(torch::kFloat))");
}

TEST_CASE("the scale backs off at once and grows after an interval without inf") {
  auto scaler = scaler_of(
      {.init_scale = 8.0, .growth_factor = 4.0, .backoff_factor = 0.25, .growth_interval = 2, .min_scale = 0});
  std::vector<double> scales;
  for (const double found : {0.0, 0.0, 1.0, 0.0, 2.0, 0.0, 0.0}) {
    scaler.update(torch::full({}, found));
    scales.push_back(scaler.state().scale);
  }
  CHECK(scales == std::vector<double>{8, 32, 8, 8, 2, 2, 8});
}

TEST_CASE("a saved state continues at its values, through JSON with PyTorch's names") {
  auto scaler = scaler_of({.init_scale = 8.0, .growth_interval = 3});
  for (int i = 0; i < 2; ++i) scaler.update(torch::zeros({}));
  const nlohmann::json saved = scaler.state();
  CHECK(saved.dump() ==
        R"({"_growth_tracker":2,"backoff_factor":0.5,"growth_factor":2.0,"growth_interval":3,"scale":8.0})");
  auto other = scaler_of({});
  other.load_state(precision::scaler_state_from_json(nlohmann::json::parse(saved.dump())));
  CHECK(other.state() == scaler.state());
  other.update(torch::zeros({}));
  CHECK(other.state().scale == 16.0);
}

TEST_CASE("an invalid saved loss scale is refused with the reason") {
  using precision::scaler_state_from_json;
  CHECK_THROWS_WITH(scaler_state_from_json(nlohmann::json(3)),
                    "load_state: the saved loss scale is number, must be a JSON object");
  nlohmann::json json = ScalerState{};
  json["growth_interval"] = "often";
  CHECK_THROWS_WITH(scaler_state_from_json(json),
                    "load_state: \"growth_interval\" of the saved loss scale is \"often\", must be an integer");
  json.erase("scale");
  CHECK_THROWS_WITH(scaler_state_from_json(json),
                    "load_state: the saved loss scale has no \"scale\"; is it another file's?");
  auto scaler = scaler_of({});
  CHECK_THROWS_WITH(
      scaler.load_state({.scale = -1.0, .growth_tracker = 3}),
      "[rank 1 of 2, gpu-b] load_state: the saved loss scale is -1 with growth tracker 3, must be a finite "
      "number above 0 with at least 0");
  CHECK_THROWS_WITH(scaler.load_state({.growth_factor = 1.0}),
                    "[rank 1 of 2, gpu-b] grad_scaler: growth_factor is 1, must be a finite number above 1");
  CHECK(scaler.state() == ScalerState{});
}

TEST_CASE("invalid options are refused with their value") {
  CHECK(refusal_of_options({}) == "taken");
  CHECK(refusal_of_options({.min_scale = 0}) == "taken");
  const std::string here = "[rank 1 of 2, gpu-b] grad_scaler: ";
  CHECK(refusal_of_options({.init_scale = 0}) == here + "init_scale is 0, must be a finite number above 0");
  CHECK(refusal_of_options({.init_scale = kInf}) == here + "init_scale is inf, must be a finite number above 0");
  CHECK(refusal_of_options({.init_scale = kNan}) == here + "init_scale is nan, must be a finite number above 0");
  CHECK(refusal_of_options({.growth_factor = 1}) == here + "growth_factor is 1, must be a finite number above 1");
  CHECK(refusal_of_options({.backoff_factor = 1}) ==
        here + "backoff_factor is 1, must be between 0 and 1, both excluded");
  CHECK(refusal_of_options({.backoff_factor = 0}) ==
        here + "backoff_factor is 0, must be between 0 and 1, both excluded");
  CHECK(refusal_of_options({.growth_interval = 0}) == here + "growth_interval is 0, must be at least 1");
  CHECK(refusal_of_options({.min_scale = -1}) ==
        here + "min_scale is -1, must be at least 0 and at most init_scale (65536)");
  CHECK(refusal_of_options({.init_scale = 2, .min_scale = 4}) ==
        here + "min_scale is 4, must be at least 0 and at most init_scale (2)");
}

TEST_CASE("values on the CPU are available at once") {
  const precision::AsyncScalarRead read(torch::tensor({1.0F, 5.0F}));
  CHECK(read.arrived());
  read.wait();
  CHECK(read[1] == 5.0F);
}
