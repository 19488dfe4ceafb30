// SPDX-License-Identifier: Apache-2.0
// Checkpoints on a real GPU: copied during training, loaded without a second copy of the model.
#include "tests/testing.hpp"
//
#include "accelerate/accelerate.hpp"
#include "tests/checkpoint/folder.hpp"

using accelerate::Accelerator;

TEST_CASE("a save during a running GPU step is loaded correctly, with the GPU's next random numbers") {
  const testing::SharedFolder folder;
  Accelerator accelerator({.device = "cuda"});
  accelerator.set_seed(3);
  torch::nn::Sequential net(torch::nn::Linear(1024, 1024), torch::nn::ReLU(), torch::nn::Linear(1024, 1024));
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
  const auto x = torch::randn({256, 1024}).to(accelerator.device());
  const auto steps = [&, &model = model, &optimizer = optimizer](int count) {
    for (int i = 0; i < count; ++i) {
      optimizer.zero_grad();
      accelerator.backward(model(x).pow(2).mean());
      optimizer.step();
    }
  };
  for (int round = 0; round < 2; ++round) {  // the second round reuses the buffers of the first
    CAPTURE(round);
    steps(20);  // the host is ahead of the device
    accelerator.save_state(folder.path / "c", {.async = true});
    std::vector<at::Tensor> kept;
    for (const at::Tensor& parameter : net->parameters()) kept.push_back(parameter.detach().clone());
    const auto drawn = torch::rand({8}, x.options());
    steps(20);
    accelerator.wait_for_checkpoint();
    CHECK_FALSE(torch::equal(net->parameters()[0], kept[0]));
    CHECK_FALSE(torch::equal(torch::rand({8}, x.options()), drawn));
    CHECK(accelerator.load_state(folder.path / "c").step == 20 * (round + 1));
    for (size_t i = 0; i < kept.size(); ++i) CHECK(torch::equal(net->parameters()[i], kept[i]));
    CHECK(torch::equal(torch::rand({8}, x.options()), drawn));
  }
}

TEST_CASE("loading needs less memory of the GPU than a second model") {
  const testing::SharedFolder folder;
  Accelerator accelerator({.device = "cuda"});
  torch::nn::Sequential net;
  for (int i = 0; i < 8; ++i) net->push_back(torch::nn::Linear(2048, 2048));  // 134 MB in eight matrices
  auto model = accelerator.prepare(net);
  int64_t bytes = 0;
  for (const at::Tensor& parameter : net->parameters()) bytes += static_cast<int64_t>(parameter.nbytes());
  accelerator.save_state(folder.path / "c");
  accelerator.reset_peak_memory();
  const int64_t before = accelerator.memory().allocated_bytes;
  CHECK(before >= bytes);
  accelerator.load_state(folder.path / "c");
  CHECK(accelerator.memory().peak_allocated_bytes < before + bytes);
}
