// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/ema.hpp"

#include "tests/testing.hpp"
//
#include <torch/csrc/jit/api/module.h>

#include <limits>

#include "tests/gradient/operators.hpp"
#include "tests/optim/steps.hpp"

using namespace accelerate::optim;

namespace {

torch::Tensor doubles(std::initializer_list<double> values) {
  return torch::tensor(std::vector<double>(values), torch::kDouble);
}

struct WeightsImpl : torch::nn::Module {
  WeightsImpl() {
    w = register_parameter("w", doubles({1, 2, 3}));
    small = register_parameter("small", torch::full({1}, 0.5));
    mean = register_buffer("mean", doubles({0.25}));
    count = register_buffer("count", torch::tensor(int64_t{3}));
  }
  void train_step(int64_t k) {
    const torch::NoGradGuard no_grad;
    w.mul_(1.1).sub_(0.01 * static_cast<double>(k));
    small.mul_(0.75);
    mean.add_(0.125 * static_cast<double>(k));
    count.add_(7);
  }
  torch::Tensor w, small, mean, count;
};
TORCH_MODULE(Weights);

double value_of(const torch::OrderedDict<std::string, at::Tensor>& state, const std::string& name) {
  return state[name].to(torch::kDouble).flatten()[0].item<double>();
}

}  // namespace

// The expected numbers and names are from torch.optim.swa_utils.AveragedModel(net,
// multi_avg_fn=get_ema_multi_avg_fn(0.9), ...) in PyTorch 2.11 on the same weights and steps. Only the count differs:
// it is copied here, while AveragedModel returns 15.
TEST_CASE("five updates equal AveragedModel's, with and without buffers; a count is copied") {
  for (const bool use_buffers : {false, true}) {
    Weights net;
    ExponentialMovingAverage ema(net, {.decay = 0.9, .use_buffers = use_buffers});
    for (int64_t k = 1; k <= 5; ++k) {
      net->train_step(k);
      ema.update();
    }
    const auto state = ema.state_dict();
    CHECK(state["n_averaged"].item<int64_t>() == 5);
    CHECK(torch::allclose(state["module.w"], doubles({1.169435, 2.3799850000000005, 3.590535000000001}), 0, 1e-12));
    CHECK(value_of(state, "module.small") == doctest::Approx(0.30973008275032043).epsilon(1e-7));
    CHECK(state.contains("module.mean") == use_buffers);
    if (!use_buffers) continue;
    CHECK(value_of(state, "module.mean") == doctest::Approx(0.7200999999999999).epsilon(1e-12));
    CHECK(state["module.count"].item<int64_t>() == 38);
  }
}

TEST_CASE("BatchNorm's batch counts and masks are copied into an average, in every dtype and warm-up") {
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16}) {
    for (const auto warmup : {EmaWarmup::none, EmaWarmup::ratio, EmaWarmup::power}) {
      torch::nn::BatchNorm1d norm(2);
      norm->to(dtype);  // LibTorch's to() also converts the count to floating point
      const auto mask = norm->register_buffer("mask", torch::tensor({true, false}));
      ExponentialMovingAverage ema(norm, {.decay = 0.9, .warmup = warmup, .use_buffers = true});
      for (int64_t k = 1; k <= 40; ++k) {
        norm->forward(torch::ones({4, 2}, dtype));
        mask.logical_not_();
        ema.update();
      }
      const auto state = ema.state_dict();
      CHECK(value_of(state, "module.num_batches_tracked") == 40);
      CHECK(torch::equal(state["module.mask"], mask));
      CHECK((state["module.mask"].scalar_type() == torch::kBool));
    }
  }
}

TEST_CASE("an update that a flag skips does not change a count, and the next update copies it") {
  const at::Tensor count = torch::tensor(int64_t{1}), weight = torch::ones({1});
  ExponentialMovingAverage ema({accelerate::state::whole_parameter("w", weight)}, {.decay = 0.5, .use_buffers = true},
                               {accelerate::state::whole_parameter("count", count)});
  for (const float skip : {0.0F, 1.0F, 0.0F}) {
    count.add_(10);
    ema.update(torch::tensor(skip));
    CHECK(ema.averages()[1].item<int64_t>() == (skip == 0 ? count.item<int64_t>() : 11));
  }
}

TEST_CASE("the decay grows as in AveragedModel, torch_ema and timm") {
  const EmaOptions none{.decay = 0.99}, ratio{.decay = 0.99, .warmup = EmaWarmup::ratio},
      power{.decay = 0.99, .warmup = EmaWarmup::power};
  CHECK(ema_weight(none, 1) == 1);
  CHECK(ema_weight(none, 2) == 1 - 0.99);
  CHECK(1 - ema_weight(ratio, 1) == doctest::Approx(2.0 / 11).epsilon(1e-14));
  CHECK(1 - ema_weight(ratio, 90) == doctest::Approx(0.91).epsilon(1e-14));
  CHECK(ema_weight(ratio, 5000) == 1 - 0.99);
  // timm: step = max(0, update - 1), decay = 1 - (1 + step)^(-2/3)
  CHECK(ema_weight(power, 1) == 1);
  CHECK(1 - ema_weight(power, 8) == doctest::Approx(0.75).epsilon(1e-14));
  CHECK(1 - ema_weight({.decay = 0.99, .warmup = EmaWarmup::power, .warmup_gamma = 2, .warmup_power = 1}, 7) ==
        doctest::Approx(0.75).epsilon(1e-14));
  CHECK(ema_weight(power, 1'000'000) == 1 - 0.99);
}

TEST_CASE("the model has the averages while the guard exists, then its own weights, also after an exception") {
  Weights net;
  ExponentialMovingAverage ema(net, {.decay = 0.5});
  for (int64_t k = 1; k <= 3; ++k) {
    net->train_step(k);
    ema.update();
  }
  const auto own = net->w.detach().clone(), average = ema.averages()[0].clone();
  const void* memory = net->w.const_data_ptr();
  CHECK_FALSE(torch::equal(own, average));
  {
    auto averaged = ema.average_parameters();
    const auto moved = std::move(averaged);
    CHECK(torch::equal(net->w.detach(), average));
  }
  CHECK(torch::equal(net->w.detach(), own));
  CHECK((net->w.const_data_ptr() == memory));
  try {
    auto averaged = ema.average_parameters();
    throw std::runtime_error("evaluation failed");
  } catch (const std::runtime_error&) {
  }
  CHECK(torch::equal(net->w.detach(), own));
  CHECK(torch::equal(ema.averages()[0], average));
  ema.update();
  CHECK(ema.updates() == 4);
}

TEST_CASE("a graph from before a swap can be used after it, one from within the swap cannot") {
  Weights net;
  ExponentialMovingAverage ema(net);
  const auto before = (net->w * net->w).sum();
  torch::Tensor within;
  {
    auto averaged = ema.average_parameters();
    within = (net->w * net->w).sum();
  }
  before.backward();
  CHECK(torch::equal(net->w.grad(), doubles({2, 4, 6})));
  CHECK_THROWS_WITH(within.backward(), doctest::Contains("modified by an inplace operation"));
}

TEST_CASE("weights of a TorchScript module are averaged") {
  torch::jit::Module script("net");
  script.register_parameter("w", doubles({1, 2, 3}), false);
  script.register_buffer("mean", doubles({0.25}));
  ExponentialMovingAverage ema(script, {.use_buffers = true});
  ema.update();
  CHECK(torch::equal(ema.state_dict()["module.w"], doubles({1, 2, 3})));
  CHECK(ema.state_dict().contains("module.mean"));
}

TEST_CASE("buffers are swapped in only if they are averaged") {
  for (const bool use_buffers : {false, true}) {
    Weights net;
    ExponentialMovingAverage ema(net, {.decay = 0.5, .use_buffers = use_buffers});
    for (int64_t k = 1; k <= 3; ++k) {
      net->train_step(k);
      ema.update();
    }
    const auto own = net->mean.clone();
    auto averaged = ema.average_parameters();
    CHECK(torch::equal(net->mean, own) != use_buffers);
  }
}

TEST_CASE("the guard may outlive the average, and the average the model's holder") {
  Weights net;
  auto ema = std::make_unique<ExponentialMovingAverage>(net);
  const auto own = net->w.detach().clone();
  {
    auto averaged = ema->average_parameters();
    ema.reset();
  }
  CHECK(torch::equal(net->w.detach(), own));
  auto second = std::make_unique<ExponentialMovingAverage>(net);
  net = nullptr;
  second->update();
  CHECK(second->updates() == 1);
}

TEST_CASE("while averages are swapped in, an update and a second swap are refused") {
  Weights net;
  ExponentialMovingAverage ema(net);
  auto averaged = ema.average_parameters();
  CHECK_THROWS_WITH(ema.update(),
                    "ExponentialMovingAverage.update: the averages are swapped in, so the model's weights are the 2 "
                    "averages themselves; end average_parameters() first");
  CHECK_THROWS_WITH((void)ema.average_parameters(),
                    "ExponentialMovingAverage.average_parameters: the 2 averages are swapped in already; end the first "
                    "average_parameters() before the next");
}

TEST_CASE("bfloat16 weights are averaged in float32, which keeps the rounded digits") {
  const at::Tensor weight = torch::full({2}, 1.0, torch::kBFloat16);
  ExponentialMovingAverage ema({accelerate::state::whole_parameter("w", weight)}, {.decay = 0.999});
  ema.update();
  weight.fill_(2.0);
  for (int k = 0; k < 10; ++k) ema.update();
  CHECK((ema.averages()[0].scalar_type() == torch::kFloat));
  CHECK(ema.averages()[0][0].item<double>() == doctest::Approx(2 - std::pow(0.999, 10)).epsilon(1e-5));
  auto averaged = ema.average_parameters();
  CHECK((weight.scalar_type() == torch::kBFloat16));
  CHECK(weight[0].item<double>() == doctest::Approx(1.0078125));
}

TEST_CASE("the master of a parameter shard is averaged and swapped into the value") {
  auto param_shard = accelerate::state::whole_parameter("w", torch::full({1}, 1.0, torch::kBFloat16));
  param_shard.master = torch::full({1}, 1.001F);
  ExponentialMovingAverage ema({param_shard}, {.decay = 0.5});
  param_shard.master.fill_(3.0);
  ema.update();
  CHECK(ema.averages()[0].item<float>() == 3.0F);
  auto averaged = ema.average_parameters();
  CHECK(param_shard.value.item<float>() == 3.0F);
  CHECK(param_shard.master.item<float>() == 3.0F);
}

TEST_CASE("master weights are restored with the weights when the averages are swapped out, even after a write") {
  auto param_shard = accelerate::state::whole_parameter("w", torch::full({1}, 1.0, torch::kBFloat16));
  param_shard.master = torch::full({1}, 1.001F);
  ExponentialMovingAverage ema({param_shard}, {.decay = 0.5});
  {
    auto averaged = ema.average_parameters();
    param_shard.master.fill_(3.0);
  }
  CHECK(param_shard.master.item<float>() == 1.001F);
  CHECK(param_shard.value.item<float>() == 1.0F);
}

TEST_CASE("a range of a weight is averaged and swapped in like the whole, and the rest does not change") {
  const at::Tensor whole = torch::linspace(-1, 1, 10, torch::kDouble), sharded = whole.clone();
  const accelerate::state::ParameterShard range{.name = "w",
                                                .sizes = {10},
                                                .begin = 3,
                                                .end = 7,
                                                .key = sharded.unsafeGetTensorImpl(),
                                                .value = sharded.narrow(0, 3, 4)};
  ExponentialMovingAverage of_whole({accelerate::state::whole_parameter("w", whole)}, {.decay = 0.9});
  ExponentialMovingAverage of_range({range}, {.decay = 0.9});
  for (int64_t k = 1; k <= 4; ++k) {
    whole.mul_(1.25).sub_(0.125 * static_cast<double>(k));
    sharded.copy_(whole);
    of_whole.update();
    of_range.update();
  }
  const at::Tensor own = sharded.clone(), average = of_whole.averages()[0].narrow(0, 3, 4);
  CHECK(of_range.averages()[0].sizes() == at::IntArrayRef({4}));
  CHECK(torch::allclose(of_range.averages()[0], average, 0, 1e-14));
  CHECK_FALSE(torch::allclose(average, own.narrow(0, 3, 4), 0, 0.1));
  {
    auto averaged = of_range.average_parameters();
    CHECK(torch::allclose(sharded.narrow(0, 3, 4), average, 0, 1e-14));
    CHECK(torch::equal(sharded.narrow(0, 0, 3), own.narrow(0, 0, 3)));
    CHECK(torch::equal(sharded.narrow(0, 7, 3), own.narrow(0, 7, 3)));
  }
  CHECK(torch::equal(sharded, own));
}

TEST_CASE("an update is one call for all weights of a dtype") {
  torch::nn::Sequential net;
  for (int i = 0; i < 20; ++i) net->push_back(torch::nn::Linear(3, 3));
  ExponentialMovingAverage ema(net);
  ema.update();
  const auto called = gradient_testing::operators_of([&] { ema.update(); });
  CHECK(called.at("aten::_foreach_lerp_") == 1);
  for (const char* other : {"aten::copy_", "aten::clone", "aten::mul_", "aten::add_"}) {
    CAPTURE(other);
    CHECK_FALSE(called.contains(other));
  }
}

TEST_CASE("a skipped step changes neither averages nor count") {
  Weights net;
  ExponentialMovingAverage ema(net, {.decay = 0.9});
  ema.update(torch::tensor(1.0F));
  CHECK(ema.updates() == 0);
  net->train_step(1);
  ema.update(torch::tensor(0.0F));
  CHECK(ema.updates() == 1);
  CHECK(torch::equal(ema.averages()[0], net->w.detach()));  // the first counted update copies
}

TEST_CASE("the parameters and buffers of a state have the names of their averages") {
  Weights net;
  const ExponentialMovingAverage ema(net, {.use_buffers = true});
  const auto parameters = ema.state_parameters();
  CHECK(parameters.size() == ema.state_dict().size() - 1);
  for (const auto& item : net->named_parameters()) CHECK(parameters["module." + item.key()].is_same(item.value()));
  for (const auto& item : net->named_buffers()) CHECK(parameters["module." + item.key()].is_same(item.value()));
}

TEST_CASE("a state is loaded from a file of another average, and both continue equally") {
  Weights net;
  ExponentialMovingAverage first(net, {.decay = 0.9, .warmup = EmaWarmup::ratio, .use_buffers = true});
  for (int64_t k = 1; k <= 3; ++k) {
    net->train_step(k);
    first.update();
  }
  ExponentialMovingAverage second(net, {.decay = 0.9, .warmup = EmaWarmup::ratio, .use_buffers = true});
  second.load_state_dict(first.state_dict());
  net->train_step(4);
  first.update();
  second.update();
  CHECK(second.updates() == 4);
  const auto ours = first.averages(), theirs = second.averages();
  for (size_t i = 0; i < ours.size(); ++i) CHECK(torch::equal(ours[i], theirs[i]));
}

TEST_CASE("a state of another model is refused with both sides, and nothing changes") {
  Weights net;
  ExponentialMovingAverage ema(net, {.decay = 0.5});
  const auto before = ema.averages()[0].clone();
  auto other = ema.state_dict();
  other["module.w"] = doubles({9, 9});
  CHECK_THROWS_WITH(ema.load_state_dict(other),
                    "ExponentialMovingAverage.load_state_dict: module.w is [2], w is [3] here");
  auto more = ema.state_dict();
  more["module.w"].fill_(9);
  more.insert("module.mean", doubles({1}));
  CHECK_THROWS_WITH(ema.load_state_dict(more),
                    "ExponentialMovingAverage.load_state_dict: there are 4 entries, 3 are expected (use_buffers is "
                    "false)");
  torch::OrderedDict<std::string, at::Tensor> empty;
  CHECK_THROWS_WITH(ema.load_state_dict(empty),
                    "ExponentialMovingAverage.load_state_dict: n_averaged is missing among the 0 entries");
  empty.insert("n_averaged", torch::tensor(int64_t{1}));
  CHECK_THROWS_WITH(ema.load_state_dict(empty), "ExponentialMovingAverage.load_state_dict: module.w is missing");
  CHECK(torch::equal(ema.averages()[0], before));
}

TEST_CASE("invalid decays are refused") {
  const std::vector<accelerate::state::ParameterShard> none;
  CHECK_THROWS_WITH(ExponentialMovingAverage(none, {.decay = 1.5}),
                    "ExponentialMovingAverage: decay is 1.5, must be from 0 to 1");
  CHECK_THROWS_WITH(ExponentialMovingAverage(none, {.decay = std::numeric_limits<double>::quiet_NaN()}),
                    "ExponentialMovingAverage: decay is nan, must be from 0 to 1");
  CHECK_THROWS_WITH(ExponentialMovingAverage(none, {.warmup_gamma = 0}),
                    "ExponentialMovingAverage: warmup_gamma is 0, must be above 0");
  CHECK_THROWS_WITH(ExponentialMovingAverage(none, {.warmup_power = -1}),
                    "ExponentialMovingAverage: warmup_power is -1, must be above 0");
}
