// SPDX-License-Identifier: Apache-2.0
// Compiles and runs the C++ blocks of the page about models that do not fit on a device.
#include "tests/testing.hpp"
//
#include "accelerate/accelerate.hpp"
#include "tests/temporary_folder.hpp"

namespace {

struct BlockImpl : torch::nn::Module {
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(512, 512));
  at::Tensor forward(const at::Tensor& x) { return x + linear(x); }
};
TORCH_MODULE(Block);

/// Blocks of 1 MiB.
struct LargeNetImpl : torch::nn::Module {
  LargeNetImpl() {
    for (int i = 0; i < 10; ++i) blocks->push_back(Block());
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return head(x);
  }
  torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList());
  torch::nn::Linear head = register_module("head", torch::nn::Linear(512, 3));
};
TORCH_MODULE(LargeNet);

/// The current folder during its lifetime.
struct InFolder {
  InFolder() { std::filesystem::current_path(folder.path); }
  ~InFolder() { std::filesystem::current_path(before); }
  InFolder(const InFolder&) = delete;
  InFolder& operator=(const InFolder&) = delete;
  std::filesystem::path before = std::filesystem::current_path();
  testing::TemporaryFolder folder;
};

}  // namespace

TEST_CASE("the page loads a checkpoint into a model with memory for a part of it") {
  const InFolder folder;
  const auto input = torch::ones({2, 512});
  LargeNet saved;
  {
    accelerate::Accelerator accelerator({.cpu = true});
    accelerator.save_model(accelerator.prepare(saved), "weights");
  }
  // block: docs/how_to/big_models.md: Load a checkpoint
  CHECK(map.at("blocks.0") == "cpu");
  CHECK(map.at("blocks.9") == "disk");
  CHECK(at::equal(output, saved(input)));
}

TEST_CASE("the page dispatches a model") {
  const InFolder folder;
  const auto input = torch::ones({2, 512});
  LargeNet net;
  const torch::NoGradGuard no_grad;
  const auto expected = net(input);
  // block: docs/how_to/big_models.md: Choose the devices
  CHECK(devices.at("blocks.9") == "disk");
  CHECK(at::equal(net(input), expected));
}

TEST_CASE("the page offloads a model") {
  const InFolder folder;
  const auto input = torch::ones({2, 512});
  LargeNet net, gpu_net;
  const torch::NoGradGuard no_grad;
  const auto expected = net(input);
  if (!torch::cuda::is_available()) gpu_net = nullptr;
  const auto offload = [&] {
    // block: docs/how_to/big_models.md: Offload a whole model
  };
  if (gpu_net) {
    offload();
  } else {
    CHECK_THROWS(offload());  // the second line; the first one took effect
  }
  CHECK(at::equal(net(input), expected));
}
