// SPDX-License-Identifier: Apache-2.0
// Compares SyncBatchNorm, checkpoint() and checksums on the device with the CPU.
#include "accelerate/nn/checksum.hpp"
#include "accelerate/nn/data_parallel.hpp"
#include "tests/stand_in/ranks.hpp"

using accelerate::Accelerator;
using stand_in::device;
using stand_in::same_as_on_cpu;
using stand_in::with_small_buckets;

namespace {

struct SyncedNetImpl : torch::nn::Module {
  SyncedNetImpl() {
    convolution = register_module("convolution", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 3, 3).padding(1)));
    norm = register_module("norm", accelerate::nn::SyncBatchNorm(3));
    last = register_module("last", torch::nn::Linear(3 * 6 * 6, 5));
    second = register_module("second", accelerate::nn::SyncBatchNorm(5));
  }
  at::Tensor forward(const at::Tensor& images) {
    const auto x = accelerate::nn::checkpoint(
        [this](const at::Tensor& in) { return torch::relu(norm(convolution(in))).flatten(1); }, images);
    return torch::log_softmax(second(last(x)), 1);
  }
  torch::nn::Conv2d convolution{nullptr};
  accelerate::nn::SyncBatchNorm norm{nullptr}, second{nullptr};
  torch::nn::Linear last{nullptr};
};
TORCH_MODULE(SyncedNet);

}  // namespace

TEST_CASE("SyncBatchNorm, within checkpoint() too, has the CPU's bits") {
  same_as_on_cpu(stand_in::trains_with<torch::optim::SGD, SyncedNet>(stand_in::kMomentum), with_small_buckets());
}

TEST_CASE("linear_cross_entropy has the CPU's loss and gradients, and the host never waits") {
  using accelerate::nn::Reduction;
  torch::manual_seed(4);
  const at::Tensor x = torch::randn({7, 6}), weight = torch::randn({11, 6}), target = torch::randint(11, {7});
  target[3] = -100;
  for (const auto dtype : {at::kDouble, at::kBFloat16}) {
    const double tolerance = dtype == at::kDouble ? 1e-7 : 3e-2;
    for (const auto reduction : {Reduction::mean, Reduction::none}) {
      const auto run = [&](const at::Device& where) {
        std::vector<at::Tensor> seen{x.to(where, dtype).requires_grad_(true),
                                     weight.to(where, dtype).requires_grad_(true)};
        const at::Tensor classes = target.to(where);
        const int64_t before = where.is_cpu() ? 0 : stand_in::host_waits(where.index());
        seen.push_back(accelerate::nn::linear_cross_entropy(
            seen[0], seen[1], classes, {.label_smoothing = 0.1, .reduction = reduction, .max_bytes = 100}));
        seen[2].sum().backward();
        if (!where.is_cpu()) CHECK(stand_in::host_waits(where.index()) == before);
        return std::vector<at::Tensor>{seen[0].grad().cpu(), seen[1].grad().cpu(), seen[2].detach().cpu()};
      };
      const auto expected = run(at::kCPU), seen = run(device(0));
      for (size_t i = 0; i < seen.size(); ++i) CHECK(torch::allclose(seen[i], expected[i], tolerance, tolerance));
    }
  }
}

TEST_CASE("a captured step with linear_cross_entropy has the losses of the plain step") {
  stand_in::on_devices(1, [](Accelerator& accelerator) {
    const auto train = [&](bool graphed) {
      const auto net = stand_in::made_equal([] { return torch::nn::Linear(6, 11); });
      auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.5));
      const auto function = [&, &optimizer = optimizer](const at::Tensor& x, const at::Tensor& target) {
        optimizer.zero_grad();
        const at::Tensor loss =
            accelerate::nn::linear_cross_entropy(x, net->weight, target, {.bias = net->bias, .max_bytes = 200});
        accelerator.backward(loss);
        optimizer.step();
        return loss;
      };
      auto step = accelerator.graphed_step(function);
      std::vector<double> losses;
      for (int64_t i = 0; i < 8; ++i) {
        const at::Tensor x = (torch::arange(42).reshape({7, 6}) * (i + 3)).remainder(11).to(net->weight.options()) / 11;
        const at::Tensor target = (torch::arange(7) * (i + 2)).remainder(11).to(accelerator.device());
        losses.push_back((graphed ? step(x, target) : function(x, target)).item<double>());
      }
      CHECK(step.not_captured_reason() == "");
      CHECK(step.graphs() == (graphed ? 1 : 0));
      accelerator.free_memory();  // a captured step has one model
      return losses;
    };
    const auto plain = train(false), graphed = train(true);
    for (size_t i = 0; i < plain.size(); ++i) CHECK(graphed[i] == doctest::Approx(plain[i]).epsilon(1e-6));
    CHECK(plain.back() != plain.front());
  });
}

TEST_CASE("dropout on the device is equal in the recompute") {
  const at::Tensor x = torch::ones({1000}, at::TensorOptions(device(0))).requires_grad_(true);
  const at::Tensor y =
      accelerate::nn::checkpoint([](const at::Tensor& in) { return torch::dropout(in, 0.5, true); }, x);
  (void)torch::rand({7}, at::TensorOptions(device(0)));  // the generator advances in between
  y.sum().backward();
  CHECK(torch::equal(y.detach().cpu(), x.grad().cpu()));
}

TEST_CASE("DataParallel over two devices has the CPU's outputs and gradients, without races" *
          stand_in::needs_stand_in()) {
  torch::manual_seed(3);
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2));
  const at::Tensor batch = torch::randn({7, 4});
  const at::Tensor expected = net->forward(batch);
  expected.pow(2).mean().backward();
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : net->parameters()) gradients.push_back(parameter.grad().clone());
  net->zero_grad();
  net->to(device(0));
  accelerate::DataParallel parallel(net, {device(0), device(1)});
  stand_in::at_every_pace([&] {
    net->zero_grad();
    const at::Tensor seen = parallel(batch.to(device(0)));
    CHECK(seen.device() == device(0));
    seen.pow(2).mean().backward();
    CHECK(torch::allclose(seen.detach().cpu(), expected.detach(), 1e-5, 1e-6));
    for (size_t i = 0; i < gradients.size(); ++i) {
      CHECK(torch::allclose(net->parameters()[i].grad().cpu(), gradients[i], 1e-5, 1e-6));
    }
  });
}

TEST_CASE("DataParallel refuses a missing device with the count" * stand_in::needs_stand_in()) {
  torch::nn::Linear net(4, 2);
  CHECK_THROWS_WITH(
      accelerate::DataParallel(net, {device(0), device(9)}),
      "DataParallel: standin:9 is requested, 4 standin devices are visible; request at most standin:3 or cpu");
}

TEST_CASE("a tensor's checksum is the same on the device") {
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kLong, at::kBool}) {
    CAPTURE(dtype);
    for (const int64_t values : {0, 1, 1000, (1 << 20) + 3}) {
      const at::Tensor tensor = torch::randn({values}).mul(3).to(dtype);
      const auto on_device = accelerate::nn::checksum(tensor.to(device(0)));
      CHECK(on_device.device() == device(0));
      CHECK(on_device.item<int64_t>() == accelerate::nn::checksum(tensor).item<int64_t>());
    }
  }
}

TEST_CASE("different models on the ranks' devices are reported") {
  stand_in::on_devices(2, [](Accelerator& accelerator) {
    auto net = stand_in::made_equal([] { return SyncedNet(); });
    auto model = accelerator.prepare(net);
    CHECK_NOTHROW(accelerator.check_synchronized(model));
    if (accelerator.is_main_process()) {
      const torch::NoGradGuard no_grad;
      net->last->bias[2].neg_();
    }
    CHECK_THROWS_WITH_AS(accelerator.check_synchronized(model),
                         doctest::Contains("parameter last.bias [5] Float has one value on rank 0, another on rank 1"),
                         accelerate::Error);
  });
}
