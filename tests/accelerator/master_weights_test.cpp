// SPDX-License-Identifier: Apache-2.0
// Parameters in bfloat16 with float32 steps.
#include "tests/testing.hpp"
//
#include <mutex>

#include "tests/accelerator/ranks.hpp"
#include "tests/checkpoint/folder.hpp"

using accelerate::Accelerator;

namespace {

const accelerate::AcceleratorOptions kPure{.cpu = true, .precision_policy = accelerate::precision::pure_bf16()};

/// w starts at 1; in bfloat16 a step of 0.0001 does not change it. The gradient of w * x is x.
struct OneNearOneImpl : torch::nn::Module {
  OneNearOneImpl() { w = register_parameter("w", torch::ones({1})); }
  torch::Tensor forward(double x) { return w * x; }
  torch::Tensor w;
};
TORCH_MODULE(OneNearOne);

/// The same with a second weight.
struct TwoNearOneImpl : torch::nn::Module {
  TwoNearOneImpl() {
    w = register_parameter("w", torch::ones({1}));
    v = register_parameter("v", torch::ones({1}));
  }
  torch::Tensor forward(double x) { return w * x + v * x; }
  torch::Tensor w, v;
};
TORCH_MODULE(TwoNearOne);

double number(const torch::Tensor& tensor) { return tensor.item<double>(); }

/// An optimizer type without a fused step.
struct OwnStep : torch::optim::SGD {
  using SGD::SGD;
};

/// Runs steps of 0.0001.
template <typename Model, typename Optimizer>
void descend(Accelerator& accelerator, const Model& model, const Optimizer& optimizer, int64_t steps, double x = 1.0) {
  for (int64_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    accelerator.backward(model(x).sum());
    optimizer.step();
  }
}

template <typename Model>
double master_of(const Model& model) {
  return number(model.parameter_shards().at(0).master);
}

const double kBf16Of096 = number(torch::full({}, 0.96).to(at::kBFloat16));

template <typename Optimizer>
double after_steps(int64_t steps, Accelerator& accelerator) {
  OneNearOne net;
  auto [model, optimizer] = accelerator.prepare(net, Optimizer(net->parameters(), torch::optim::SGDOptions(1e-4)));
  descend(accelerator, model, optimizer, steps);
  CHECK((net->w.scalar_type() == at::kBFloat16));
  CHECK((net->w.grad().scalar_type() == at::kBFloat16));
  CHECK(optimizer.param_groups()[0].params()[0].is_same(net->w));
  return number(net->w);
}

}  // namespace

TEST_CASE("steps below bfloat16's resolution accumulate in float32, fused or not") {
  Accelerator accelerator(kPure);
  CHECK(after_steps<torch::optim::SGD>(400, accelerator) == kBf16Of096);
  CHECK(after_steps<OwnStep>(400, accelerator) == kBf16Of096);
  torch::NoGradGuard no_grad;
  auto without = torch::ones({1}, at::kBFloat16);
  for (int step = 0; step < 400; ++step) without.sub_(1e-4);
  CHECK(number(without) == 1.0);
}

TEST_CASE("a TorchScript module's parameters are bfloat16, and its steps accumulate in float32") {
  torch::jit::Module script("net");
  script.register_parameter("w", torch::ones({1}).requires_grad_(), false);
  script.define("def forward(self, x):\n  return self.w * x\n");
  const at::Tensor w = script.attr("w").toTensor();
  Accelerator accelerator(kPure);
  auto [model, optimizer] = accelerator.prepare(script, torch::optim::SGD(std::vector<at::Tensor>{w}, 1e-4));
  for (int step = 0; step < 400; ++step) {
    optimizer.zero_grad();
    const auto y = model({torch::ones({1}, at::kBFloat16)}).toTensor();
    CHECK((y.scalar_type() == at::kFloat));
    accelerator.backward(y.sum());
    optimizer.step();
  }
  CHECK((w.scalar_type() == at::kBFloat16));
  CHECK((w.grad().scalar_type() == at::kBFloat16));
  CHECK(number(w) == kBf16Of096);
  CHECK(master_of(model) == doctest::Approx(0.96).epsilon(1e-5));
}

TEST_CASE("parameters, gradients and buffers are bfloat16, outputs float32; AdamW's averages are float32") {
  Accelerator accelerator(kPure);
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4));
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-3));
  const auto y = model(torch::randn({8, 4}));
  CHECK((y.scalar_type() == at::kFloat));
  accelerator.backward(y.pow(2).mean());
  CHECK(number(accelerator.clip_grad_norm_(model, 1.0)) > 0);
  optimizer.step();
  for (const auto& parameter : net->parameters()) {
    CHECK((parameter.scalar_type() == at::kBFloat16));
    const auto& state =
        static_cast<torch::optim::AdamWParamState&>(*optimizer.state().at(parameter.unsafeGetTensorImpl()));
    CHECK((state.exp_avg().scalar_type() == at::kFloat));
    CHECK(state.step() == 1);
  }
  CHECK((net->named_buffers()["1.running_mean"].scalar_type() == at::kBFloat16));
}

TEST_CASE("counts, masks and complex numbers of a module keep their dtypes, although its own cast would round") {
  struct WithCounts : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) { return w * x + at::real(turn).to(x.scalar_type()); }
    at::Tensor w = register_parameter("w", torch::ones({1}));
    at::Tensor turn = register_parameter("turn", torch::full({1}, c10::complex<float>(0, 1)));
    at::Tensor ids = register_buffer("ids", torch::arange(300));
    at::Tensor mask = register_buffer("mask", torch::ones({2}, torch::kBool));
    at::Tensor average = register_buffer("average", torch::ones({2}));
    torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(1));
  };
  Accelerator accelerator(kPure);
  const auto net = std::make_shared<WithCounts>();
  auto model = accelerator.prepare(net);
  CHECK((net->w.scalar_type() == at::kBFloat16));
  CHECK((net->average.scalar_type() == at::kBFloat16));
  CHECK((net->ids.scalar_type() == at::kLong));
  CHECK(net->ids[257].item<int64_t>() == 257);
  CHECK((net->mask.scalar_type() == at::kBool));
  CHECK((net->turn.scalar_type() == at::kComplexFloat));
  CHECK((net->norm->num_batches_tracked.scalar_type() == at::kLong));
  CHECK(number(model(torch::ones({1}))) == 1);
}

TEST_CASE("two optimizers of one model step on the masters of their own parameters, on one rank and on two") {
  for (const int64_t ranks : {1, 2}) {
    on_ranks(
        ranks,
        [](Accelerator& accelerator) {
          TwoNearOne net;
          auto [model, of_w, of_v] =
              accelerator.prepare(net, torch::optim::SGD({net->w}, 1e-4), torch::optim::SGD({net->v}, 2e-4));
          for (int step = 0; step < 100; ++step) {
            of_w.zero_grad();
            of_v.zero_grad();
            accelerator.backward(model(1.0).sum());
            of_w.step();
            if (step < 50) of_v.step();
          }
          const auto parameter_shards = model.parameter_shards();
          CHECK(number(parameter_shards.at(0).master) == doctest::Approx(0.99));
          CHECK(number(parameter_shards.at(1).master) == doctest::Approx(0.99));
          for (const auto& param_shard : parameter_shards)
            CHECK(torch::equal(param_shard.value, param_shard.master.to(at::kBFloat16)));
        },
        kPure);
  }
}

TEST_CASE("weights that are loaded after prepare() are used by the next step") {
  Accelerator accelerator(kPure);
  OneNearOne net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.5));
  const auto step = [&, &model = model, &optimizer = optimizer] {
    optimizer.zero_grad();
    accelerator.backward(model(1.0).sum());
    optimizer.step();
  };
  step();
  CHECK(number(net->w) == 0.5);
  {
    const torch::NoGradGuard no_grad;
    net->w.fill_(8.0);
  }
  step();
  CHECK(number(net->w) == 7.5);
  net->w.data().fill_(4.0);  // not counted as a change
  step();
  CHECK(number(net->w) == 3.5);
}

TEST_CASE("float32 weights that load_model() reads reach the masters exactly") {
  const testing::SharedFolder folder;
  Accelerator accelerator(kPure);
  OneNearOne net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1e-4));
  const auto saved = torch::full({1}, 1.0001);
  accelerate::prepared::TensorDict dict;
  dict.insert("w", saved);
  accelerator.save(dict, folder.path / "w.safetensors");
  (void)accelerator.load_model(model, folder.path / "w.safetensors");
  CHECK(number(net->w) == 1.0);
  CHECK(master_of(model) == number(saved));
}

TEST_CASE("a second prepare() keeps loaded weights and the additional digits of the masters") {
  Accelerator accelerator(kPure);
  OneNearOne net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1e-4));
  descend(accelerator, model, optimizer, 10);
  net->register_parameter("other", torch::ones({1}));  // changes the parameters, so the module is prepared again
  auto again = accelerator.prepare(net);
  CHECK_FALSE(again == model);
  CHECK(master_of(again) == doctest::Approx(0.999));
  {
    const torch::NoGradGuard no_grad;
    net->w.fill_(8.0);
  }
  net->parameters()[1].requires_grad_(false);
  again = accelerator.prepare(net);
  CHECK(number(net->w) == 8.0);
  CHECK(master_of(again) == 8.0);
}

TEST_CASE("swapping averages in and out leaves the masters unchanged") {
  Accelerator accelerator(kPure);
  OneNearOne net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1e-4));
  accelerate::optim::ExponentialMovingAverage of_model(model, {.decay = 0.99}), of_module(net, {.decay = 0.99});
  for (int64_t tens = 1; tens <= 40; ++tens) {
    descend(accelerator, model, optimizer, 10);
    of_model.update();
    of_module.update();
    auto averaged = (tens % 2 == 0 ? of_model : of_module).average_parameters();
  }
  CHECK(number(net->w) == kBf16Of096);
  CHECK(master_of(model) == doctest::Approx(0.96).epsilon(1e-5));
  {
    auto averaged = of_model.average_parameters();
    CHECK(master_of(model) > 0.98);  // read in between: the value that a checkpoint would save
  }
  CHECK(master_of(model) == doctest::Approx(0.96).epsilon(1e-5));
}

TEST_CASE("an average of a prepared model reads the masters, also new ones after free_memory()") {
  Accelerator accelerator(kPure);
  OneNearOne net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1e-4));
  accelerate::optim::ExponentialMovingAverage ema(model, {.decay = 0.5});
  CHECK(ema.state_dict().contains("module.w"));
  descend(accelerator, model, optimizer, 4);
  ema.update();
  CHECK(number(ema.averages()[0]) == doctest::Approx(0.9996).epsilon(1e-6));  // bfloat16's 1
  accelerator.free_memory();
  auto [again, stepped] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 2e-4));
  descend(accelerator, again, stepped, 4);
  ema.update();
  CHECK(number(ema.averages()[0]) == doctest::Approx((0.9996 + 0.9992) / 2).epsilon(1e-6));
}

TEST_CASE("at the end of a join ranks have the masters of the rank that continued longest") {
  on_ranks(
      2,
      [](Accelerator& accelerator) {
        OneNearOne net;
        auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1e-4));
        {
          auto join = accelerator.join_uneven_inputs(model);
          descend(accelerator, model, optimizer, accelerator.is_main_process() ? 3 : 10);
        }
        CHECK(master_of(model) ==
              doctest::Approx(1 - 3e-4 - 7 * 5e-5).epsilon(1e-6));  // seven steps on half a gradient
      },
      kPure);
}

TEST_CASE("ranks start with rank 0's masters and stay equal; local SGD averages the masters") {
  for (const bool local : {false, true}) {
    CAPTURE(local);
    std::mutex mutex;
    std::vector<double> weights;
    on_ranks(
        2,
        [&](Accelerator& accelerator) {
          OneNearOne net;
          {
            const torch::NoGradGuard no_grad;
            net->w.add_(accelerator.is_main_process() ? 0.003 : 5.0);  // bfloat16's 1.0 and 6.0
          }
          auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1e-4));
          const double x = accelerator.is_main_process() ? 1.0 : 3.0;
          const auto train = [&, &model = model, &optimizer = optimizer](const auto& after) {
            for (int step = 0; step < 100; ++step) {
              optimizer.zero_grad();
              accelerator.backward(model(x).sum());
              optimizer.step();
              after();
            }
          };
          if (local) {
            auto apart = accelerator.local_sgd(model, 10);
            train([&] { apart.step(); });
            apart.finish();
          } else {
            train([] {});
          }
          const std::lock_guard lock(mutex);
          weights.push_back(number(net->w));
        },
        kPure);
    const double expected = number(torch::full({}, 1.003 - 100 * 2e-4).to(at::kBFloat16));
    CHECK(weights == std::vector<double>{expected, expected});
  }
}

TEST_CASE("a closure that the optimizer evaluates itself is refused") {
  Accelerator accelerator(kPure);
  OneNearOne net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::LBFGS(net->parameters()));
  CHECK_THROWS_WITH(
      optimizer.step([] { return torch::zeros({}); }),
      doctest::Contains("optimizer.step: this optimizer calls its closure itself, while its parameters are "
                        "their float32 master weights; step without a closure, or keep the parameters in "
                        "float32"));
}

TEST_CASE("an invalid policy is refused") {
  CHECK_THROWS_WITH(
      Accelerator({.cpu = true, .precision_policy = accelerate::precision::Policy{.parameter = at::kHalf}}),
      doctest::Contains("mixed_precision: the policy's parameter dtype is fp16, must be bfloat16 (bf16) or "
                        "float32; gradients of fp16 parameters overflow and cannot be unscaled"));
}
