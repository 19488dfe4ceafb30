// SPDX-License-Identifier: Apache-2.0
// convert_linear() before and after prepare().
#include "tests/testing.hpp"
//
#include <mutex>
#include <vector>

#include "tests/accelerator/ranks.hpp"
#include "tests/checkpoint/folder.hpp"

namespace convert_prepared {

using accelerate::Accelerator;
using accelerate::nn::convert_linear;

enum class Converted { never, before_prepare, after_prepare, between_steps };

/// The same net on every rank; ranks as threads share LibTorch's generator.
torch::nn::Sequential made() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(3);
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2));
  net->to(at::kDouble);
  return net;
}

/// [2, 5, 4] of this rank: the layers of LibTorch add their biases in a second pass.
at::Tensor batch_of(const Accelerator& accelerator, int64_t step) {
  return torch::linspace(-1, 1, 40, at::kDouble).view({2, 5, 4}) *
         static_cast<double>(1 + step + accelerator.process_index());
}

/// Weights of rank 0 after six steps.
std::vector<at::Tensor> trained(int64_t ranks, Converted when) {
  std::vector<at::Tensor> result;
  on_ranks(ranks,
           [&](Accelerator& accelerator) {
             auto net = made();
             if (when == Converted::before_prepare) CHECK(convert_linear(net).exchanged.size() == 2);
             auto [model, optimizer] = accelerator.prepare(
                 net, torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)));
             if (when == Converted::after_prepare) CHECK(convert_linear(net).exchanged.size() == 2);
             for (int64_t step = 0; step < 6; ++step) {
               if (when == Converted::between_steps && step == 3) CHECK(convert_linear(*model).exchanged.size() == 2);
               optimizer.zero_grad();
               const at::Tensor y = model(batch_of(accelerator, step));
               const bool converted = when != Converted::never && (when != Converted::between_steps || step >= 3);
               CHECK(y.grad_fn()->name() == (converted ? "ViewBackward0" : "AddBackward0"));
               accelerator.backward(y.pow(2).mean());
               optimizer.step();
             }
             CHECK(accelerator.prepare(net) == model);
             accelerator.check_synchronized(model);
             if (!accelerator.is_main_process()) return;
             for (const auto& parameter : net->parameters()) result.push_back(parameter.detach().clone());
           },
           {.cpu = true});
  return result;
}

TEST_CASE("a net converted before or after prepare(), or between steps, trains to the same numbers") {
  for (const int64_t ranks : {1, 2}) {
    const auto expected = trained(ranks, Converted::never);
    CHECK(expected.size() == 4);
    for (const auto when : {Converted::before_prepare, Converted::after_prepare, Converted::between_steps}) {
      const auto seen = trained(ranks, when);
      for (size_t i = 0; i < expected.size(); ++i) CHECK(torch::allclose(seen.at(i), expected[i], 1e-12, 1e-12));
    }
  }
}

TEST_CASE("a checkpoint of a net without conversion loads into a converted one") {
  const testing::SharedFolder folder;
  auto net = made();
  {
    Accelerator accelerator({.cpu = true});
    auto model = accelerator.prepare(net);
    accelerator.save_state(folder.path / "state");
    accelerator.save_model(model, folder.path / "weights");
  }
  Accelerator accelerator({.cpu = true});
  torch::nn::Sequential other(torch::nn::Linear(4, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2));
  other->to(at::kDouble);
  auto model = accelerator.prepare(other);
  convert_linear(other);
  accelerator.load_state(folder.path / "state");
  const at::Tensor x = torch::rand({2, 5, 4}, at::kDouble);
  CHECK(torch::allclose(model(x), net->forward(x), 1e-12, 1e-12));
  accelerator.load_model(model, folder.path / "weights");
  CHECK(torch::allclose(model(x), net->forward(x), 1e-12, 1e-12));
}

}  // namespace convert_prepared
