// SPDX-License-Identifier: Apache-2.0
// Compiled code runs on the device type of its export only: its kernels would read the stand-in's memory without order.
#include "accelerate/nn/compiled_module.hpp"
#include "tests/build_folder.hpp"
#include "tests/refusal.hpp"
#include "tests/stand_in/ranks.hpp"

using accelerate::Accelerator;

TEST_CASE("a package for CPUs is refused on the device, in graphed_step too, and runs after the module moved back") {
  stand_in::on_devices(1, [](Accelerator& accelerator) {
    const std::string path = testing::build_folder() + "/compiled_packages/mlp.pt2";
    accelerate::nn::CompiledModule net(path, {.trusted = true});
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const at::Tensor x = torch::ones({4, 6}, torch::kDouble);
    const std::string type = c10::DeviceTypeName(accelerator.device().type(), /*lower_case=*/true);
    const std::string expected = "CompiledModule: " + path +
                                 ": the package was compiled for cpu, the parameters are on " +
                                 accelerator.device().str() + "; move the module with to(), or export it on " + type;
    auto step = accelerator.graphed_step(
        [&, &model = model, &optimizer = optimizer](const at::Tensor& input) {
          optimizer.zero_grad();
          const at::Tensor loss = model(input).square().mean();
          accelerator.backward(loss);
          optimizer.step();
          return loss;
        },
        {.warmup_steps = 1});
    for (int i = 0; i < 3; ++i) {  // more calls than warm-up steps
      CHECK(testing::refusal([&] { step(x.to(accelerator.device())); }) == expected);
    }
    CHECK(step.graphs() == 0);
    net->to(torch::kCPU);
    CHECK(net->forward(x).device().is_cpu());
  });
}
