// SPDX-License-Identifier: Apache-2.0
// User code or a graph keeps tensors during training: gradients, buffers, parameters.
#include "tests/stand_in/ranks.hpp"

using accelerate::Accelerator;
using stand_in::Tensors;

namespace {

constexpr const char* kChangedUnderGraph = "modified by an inplace operation";

struct TwoLinearsImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& images) { return last(torch::tanh(hidden(images.flatten(1)))); }
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(36, 16));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(16, 5));
};
TORCH_MODULE(TwoLinears);

// One weight, a constant buffer and one that forward may set.
struct WithBuffersImpl : torch::nn::Module {
  WithBuffersImpl() {
    weight = register_parameter("weight", torch::ones({3}));
    table = register_buffer("table", torch::arange(3, torch::kFloat));
    scale = register_buffer("scale", torch::zeros({3}));
  }
  at::Tensor with_table(const at::Tensor& x) { return weight * x * table; }
  at::Tensor with_scale(const at::Tensor& x) { return weight * x * scale; }
  at::Tensor forward(const at::Tensor& x, bool scales) { return scales ? with_scale(x) : with_table(x); }
  at::Tensor weight, table, scale;
};
TORCH_MODULE(WithBuffers);

}  // namespace

TEST_CASE("kept gradients and slices of them retain their values over steps") {
  stand_in::same_as_on_cpu([](Accelerator& accelerator) -> Tensors {
    stand_in::Job<TwoLinears> job(accelerator, torch::optim::SGDOptions(0.125), 12 * accelerator.num_processes());
    auto& [model, optimizer, loader] = job.prepared;
    Tensors kept, copies;
    for (auto& [images, labels] : loader) {
      accelerator.backward(stand_in::loss_of(model(images), labels));
      optimizer.step();
      for (const at::Tensor& parameter : model->parameters()) {
        kept.push_back(parameter.grad());
        kept.push_back(parameter.grad()[0]);
        copies.push_back(kept[kept.size() - 2].clone());
        copies.push_back(kept.back().clone());
      }
      optimizer.zero_grad();
    }
    for (size_t i = 0; i < kept.size(); ++i) CHECK(at::equal(kept[i].to(at::kCPU), copies[i].to(at::kCPU)));
    return kept;
  });
}

TEST_CASE("a graph that saved a buffer throws only if the broadcast changed the buffer's values") {
  stand_in::on_devices(2, [](Accelerator& accelerator) {
    WithBuffers net;
    auto model = accelerator.prepare(net);
    const auto x = torch::ones({3}, accelerator.device());
    const auto constant = model(x, false).sum() + model(x, false).sum();
    accelerator.backward(constant);
    CHECK(at::equal(net->weight.grad().to(at::kCPU), 2 * torch::arange(3, torch::kFloat)));
    net->scale.fill_(static_cast<double>(accelerator.process_index() + 1));
    const auto loss = net->forward(x, true).sum();
    model(x, true);  // broadcasts rank 0's
    CHECK(at::equal(net->scale.to(at::kCPU), torch::ones({3})));
    if (accelerator.is_main_process()) {
      accelerator.backward(loss);
    } else {
      CHECK_THROWS_WITH(loss.backward(), doctest::Contains(kChangedUnderGraph));
      accelerator.backward(net->forward(x, true).sum());  // the reduction for which rank 0 waits
    }
  });
}

TEST_CASE("a graph from before a captured step throws after the replay, as after a plain step") {
  stand_in::on_devices(1, [](Accelerator& accelerator) {
    stand_in::Job<TwoLinears> job(accelerator, torch::optim::SGDOptions(0.125), 12);
    auto& [model, optimizer, loader] = job.prepared;
    const auto [images, labels] = stand_in::small_data(3);
    const auto x = images.to(accelerator.device()), y = labels.to(accelerator.device());
    auto step = accelerator.graphed_step(
        [&, &model = model, &optimizer = optimizer](const at::Tensor& a, const at::Tensor& b) {
          optimizer.zero_grad();
          const auto loss = stand_in::loss_of(model(a), b);
          accelerator.backward(loss);
          optimizer.step();
          return loss;
        },
        {.warmup_steps = 1});
    for (int i = 0; i < 3; ++i) step(x, y);
    REQUIRE(step.not_captured_reason().empty());
    const auto before = stand_in::loss_of(model(x), y);
    step(x, y);
    CHECK_THROWS_WITH(before.backward(), doctest::Contains(kChangedUnderGraph));
    stand_in::loss_of(model(x), y).backward();
  });
}
