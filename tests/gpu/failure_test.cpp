// SPDX-License-Identifier: Apache-2.0
// Out of memory on a real GPU.
#include "tests/testing.hpp"
//
#include "accelerate/accelerate.hpp"

namespace {

/// Requests a tebibyte for a batch of more than 64 rows.
struct HungryImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const int64_t bytes = x.size(0) > 64 ? int64_t{1} << 40 : 1;
    const at::Tensor scratch = torch::empty({bytes}, x.options().dtype(torch::kByte));
    return layer(x) + static_cast<double>(scratch.numel() - bytes);
  }
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(512, 256));
};
TORCH_MODULE(Hungry);

}  // namespace

TEST_CASE("out of memory is an Error of the device with known tensors, and a smaller batch continues") {
  accelerate::Accelerator accelerator({.device = "cuda"});
  Hungry net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-3));
  const auto run = [&, &model = model, &optimizer = optimizer](int64_t size) {
    const auto x = torch::ones({size, 512}).to(accelerator.device());
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      accelerator.backward(model(x).square().mean());
      optimizer.step();
    }
  };
  try {
    run(65);
    FAIL_CHECK("memory sufficed");
  } catch (const accelerate::Error& error) {
    const std::string text = error.what();
    CAPTURE(text);
    CHECK((error.kind() == accelerate::ErrorKind::device));
    CHECK(text.find("forward: CUDA out of memory. Tried to allocate 1024.00 GiB") != std::string::npos);
    CHECK(text.find(
              "; known tensors: 513 KiB in 2 tensors (parameters 513 KiB), the largest layer.weight [256, 512] Float "
              "(512 KiB)") != std::string::npos);
  }
  const int64_t fits = accelerator.find_executable_batch_size(run, 1024);
  CHECK(fits <= 64);
  CHECK(fits > 32);
  for (const auto& parameter : model.parameters()) CHECK_FALSE(parameter.isnan().any().item<bool>());
}
