// SPDX-License-Identifier: Apache-2.0
// One rank of a pipeline in which rank 1 is killed at a given point. Rank 0 prints its error and exits with 3.
#include <torch/torch.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <utility>

#include "accelerate/accelerate.hpp"

namespace {

/// Kills its process in the forward or backward of a micro-batch.
struct KilledImpl : torch::nn::Module {
  explicit KilledImpl(std::string where) : point(std::move(where)) {}
  torch::Tensor forward(const torch::Tensor& x) {
    if (++calls < 6) return x;  // the second micro-batch of the second step
    if (point == "forward") std::raise(SIGKILL);
    auto y = x * 1;
    if (point == "backward") {
      y.register_hook([](const torch::Tensor& gradient) {
        std::raise(SIGKILL);
        return gradient;
      });
    }
    return y;
  }
  std::string point;
  int calls = 0;
};
TORCH_MODULE(Killed);

/// Two data parallel ranks of a prepared pipeline with one stage: rank 1 is killed in the backward, and rank 0 waits
/// for its gradients.
void kill_before_average() {
  accelerate::Accelerator accelerator({.cpu = true, .timeout = std::chrono::seconds(5)});
  const bool is_killed = accelerator.process_index() == 1;
  torch::nn::Sequential layers(torch::nn::Linear(8, 8), Killed(is_killed ? "backward" : ""), torch::nn::Linear(8, 8));
  accelerate::nn::Pipeline net(accelerator.pipeline_parallel_group(), std::move(layers), {.micro_batches = 4});
  const auto model = accelerator.prepare(net);
  for (int64_t step = 0; step < 3; ++step) {
    model->train_step(torch::ones({8, 8}), torch::ones({8, 8}),
                      [](const auto& output, const auto& target) { return torch::mse_loss(output, target); });
  }
}

}  // namespace

int main(int count, char** arguments) {
  const std::string point = count > 1 ? arguments[1] : "";
  try {
    if (point == "average") return kill_before_average(), 0;
    accelerate::Accelerator accelerator({.cpu = true, .timeout = std::chrono::seconds(5)});
    torch::nn::Sequential layers(torch::nn::Linear(8, 8), torch::nn::Tanh(), Killed(point), torch::nn::Linear(8, 8));
    accelerate::nn::Pipeline pipeline(accelerator.group(), std::move(layers),
                                      {.micro_batches = 4, .layers_per_stage = {2, 2}});
    const auto loss = [](const torch::Tensor& output, const torch::Tensor& target) {
      return torch::mse_loss(output, target);
    };
    for (int64_t step = 0; step < 3; ++step) {
      pipeline.train_step(torch::ones({8, 8}), torch::ones({8, 8}), loss);
      if (step == 1 && point == "between" && accelerator.process_index() == 1) std::raise(SIGKILL);
    }
  } catch (const accelerate::Error& error) {
    std::printf("%s: %s\n", std::string(error_kind_name(error.kind())).c_str(), error.what());
    return 3;
  }
  return 0;
}
