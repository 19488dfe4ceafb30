// SPDX-License-Identifier: Apache-2.0
// Programs with their own streams: every consumer of a reduction waits for it on its stream.
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tests/stand_in/ranks.hpp"

using accelerate::Accelerator;
using stand_in::make_wait;
using stand_in::OnASideStream;
using stand_in::same_as_on_cpu;
using stand_in::Tensors;
using stand_in::trains_with;

namespace {

/// On an accelerator its second branch runs on a separate stream.
struct TwoBranchesImpl : torch::nn::Module {
  TwoBranchesImpl() {
    left = register_module("left", torch::nn::Linear(36, 5));
    right = register_module("right", torch::nn::Linear(36, 5));
  }
  at::Tensor forward(const at::Tensor& images) {
    const auto x = images.flatten(1);
    return torch::log_softmax(torch::tanh(left(x)) + (x.is_cpu() ? on_the_right(x) : on_a_side_stream(x)), 1);
  }
  at::Tensor on_the_right(const at::Tensor& x) { return torch::tanh(right(x)); }
  at::Tensor on_a_side_stream(const at::Tensor& x) {
    const c10::impl::VirtualGuardImpl guard(x.device().type());
    const auto main = guard.getStream(x.device());
    const auto side = guard.getNewStream(x.device());
    make_wait(side, main);
    x.record_stream(side);
    at::Tensor y;
    {
      const c10::StreamGuard on_side(side);
      y = on_the_right(x);
    }
    make_wait(main, side);
    y.record_stream(main);
    return y;
  }
  torch::nn::Linear left{nullptr}, right{nullptr};
};
TORCH_MODULE(TwoBranches);

}  // namespace

TEST_CASE("a model with its own streams is reduced when all its gradients are ready") {
  same_as_on_cpu(trains_with<torch::optim::SGD, TwoBranches>(torch::optim::SGDOptions(0.1)), {}, {1, 2}, 2000);
}

TEST_CASE("a loop on the user's own stream: reductions and gathers block that stream") {
  same_as_on_cpu(
      [](Accelerator& accelerator) -> Tensors {
        stand_in::Job<> job(accelerator, torch::optim::SGDOptions(0.1));
        auto& [model, optimizer, loader] = job.prepared;
        Tensors found;
        const OnASideStream side(accelerator.device());
        for (auto& [images, labels] : loader) {
          stand_in::backward_on(accelerator, model, optimizer, images, labels);
          found.push_back(accelerator.clip_grad_norm_(model, 0.5));
          optimizer.step();
          found.push_back(accelerator.gather(labels));
          found.push_back(accelerator.reduce(found.front()));
        }
        for (const auto& tensor : stand_in::state_of(model)) found.push_back(tensor);
        return stand_in::to_cpu(found);
      },
      stand_in::with_small_buckets());
}

TEST_CASE("a plain loss.backward() is reduced on the device, before its gradients are used") {
  same_as_on_cpu(
      [](Accelerator& accelerator) -> Tensors {
        stand_in::Job<> job(accelerator, torch::optim::SGDOptions(0.1));
        auto& [model, optimizer, loader] = job.prepared;
        for (auto& [images, labels] : loader) {
          optimizer.zero_grad();
          torch::nll_loss(model(images), labels).backward();
          optimizer.step();
        }
        return stand_in::state_of(model);
      },
      stand_in::with_small_buckets());
}
