// SPDX-License-Identifier: Apache-2.0
// Parameters in bfloat16, stepped on in float32.
#include "tests/testing.hpp"
//
#include <mutex>

#include "tests/accelerator/ranks.hpp"

using accelerate::Accelerator;

namespace {

const accelerate::AcceleratorOptions kPure{.cpu = true, .precision_policy = accelerate::precision::pure_bf16()};

/// w starts at 1, and 0.0001 is nothing to it in bfloat16; the gradient of w * x is x.
struct OneNearOneImpl : torch::nn::Module {
  OneNearOneImpl() { w = register_parameter("w", torch::ones({1})); }
  torch::Tensor forward(double x) { return w * x; }
  torch::Tensor w;
};
TORCH_MODULE(OneNearOne);

double number(const torch::Tensor& tensor) { return tensor.item<double>(); }

/// Not one of the optimizers that are stepped fused.
struct OwnStep : torch::optim::SGD {
  using SGD::SGD;
};

template <typename Optimizer>
double after_steps(int steps, Accelerator& accelerator) {
  OneNearOne net;
  auto [model, optimizer] = accelerator.prepare(net, Optimizer(net->parameters(), torch::optim::SGDOptions(1e-4)));
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    accelerator.backward(model(1.0).sum());
    optimizer.step();
  }
  CHECK((net->w.scalar_type() == at::kBFloat16));
  CHECK((net->w.grad().scalar_type() == at::kBFloat16));
  CHECK(optimizer.param_groups()[0].params()[0].is_same(net->w));
  return number(net->w);
}

}  // namespace

TEST_CASE("steps that bfloat16 would round away add up in float32, fused or in the optimizer's own step") {
  Accelerator accelerator(kPure);
  const double bf16_of_0_96 = number(torch::full({}, 0.96).to(at::kBFloat16));
  CHECK(after_steps<torch::optim::SGD>(400, accelerator) == bf16_of_0_96);
  CHECK(after_steps<OwnStep>(400, accelerator) == bf16_of_0_96);
  torch::NoGradGuard no_grad;
  auto without = torch::ones({1}, at::kBFloat16);
  for (int step = 0; step < 400; ++step) without.sub_(1e-4);
  CHECK(number(without) == 1.0);
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

TEST_CASE("weights that are loaded after prepare() are what training goes on from") {
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
}

TEST_CASE("ranks have rank 0's masters from the start and stay equal; local SGD averages the masters") {
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

TEST_CASE("a closure that the optimizer calls itself is refused: it would see the parameters exchanged") {
  Accelerator accelerator(kPure);
  OneNearOne net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::LBFGS(net->parameters()));
  CHECK_THROWS_WITH(
      optimizer.step([] { return torch::zeros({}); }),
      doctest::Contains("optimizer.step: this optimizer calls its closure itself, while its parameters are "
                        "their float32 master weights; step without a closure, or keep the parameters in "
                        "float32"));
}

TEST_CASE("a policy that cannot be is refused") {
  CHECK_THROWS_WITH(
      Accelerator({.cpu = true, .precision_policy = accelerate::precision::Policy{.parameter = at::kHalf}}),
      doctest::Contains("mixed_precision: the policy's parameter dtype is fp16, must be bfloat16 (bf16) or "
                        "float32; gradients of fp16 parameters overflow and cannot be unscaled"));
}
