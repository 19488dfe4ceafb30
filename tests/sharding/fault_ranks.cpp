// SPDX-License-Identifier: Apache-2.0
// One rank of a sharded training in which rank 1 is killed at a given point. Rank 0 prints its error and exits with 3.
#include <torch/torch.h>

#include <csignal>
#include <cstdio>
#include <string>

#include "accelerate/accelerate.hpp"

namespace {

struct Net : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& layer : *layers) {
      x = torch::tanh(layer->as<torch::nn::Linear>()->forward(x));
      if (killed_at == "forward" && is_victim) std::raise(SIGKILL);
    }
    if (killed_at == "backward" && is_victim) {
      x.register_hook([](const torch::Tensor& gradient) {
        std::raise(SIGKILL);
        return gradient;
      });
    }
    return x;
  }
  torch::nn::ModuleList layers = register_module(
      "layers", torch::nn::ModuleList(torch::nn::Linear(8, 8), torch::nn::Linear(8, 8), torch::nn::Linear(8, 8)));
  std::string killed_at{};
  bool is_victim = false;
};

}  // namespace

int main(int count, char** arguments) {
  const std::string point = count > 1 ? arguments[1] : "";
  try {
    accelerate::Accelerator accelerator(
        {.cpu = true,
         .timeout = std::chrono::seconds(5),
         .fsdp_plugin = {.sharding_strategy = accelerate::ShardingStrategy::full_shard, .min_num_params = 60}});
    const auto net = std::make_shared<Net>();
    torch::optim::AdamW adamw(net->parameters(), 1e-3);
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    const bool is_victim = accelerator.process_index() == 1;
    for (int64_t step = 0; step < 3; ++step) {
      if (step == 2) {
        net->killed_at = point;
        net->is_victim = is_victim;
      }
      optimizer.zero_grad();
      const auto loss = model(torch::ones({2, 8})).mean();
      if (step == 2 && point == "between" && is_victim) std::raise(SIGKILL);
      accelerator.backward(loss);
      if (step == 2 && point == "step" && is_victim) std::raise(SIGKILL);
      optimizer.step();
    }
    if (point == "save" && is_victim) std::raise(SIGKILL);
    accelerator.save_model(model, "/dev/null/never-written");
  } catch (const accelerate::Error& error) {
    std::printf("%s: %s\n", std::string(error_kind_name(error.kind())).c_str(), error.what());
    return 3;
  }
  return 0;
}
