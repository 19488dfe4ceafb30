// SPDX-License-Identifier: Apache-2.0
// pipeline: a network in stages on several ranks (nn::Pipeline). The first rank keeps the first layers, the last rank
// the last layers and the loss. Without a launcher all stages are in one process, with the same result.
#include <accelerate/accelerate.hpp>

#include "command_line.hpp"

namespace {

/// Points on lines with noise, and slope and height of the lines.
struct Lines {
  torch::Tensor points;  // [B, 16]
  torch::Tensor truth;   // [B, 2]
};

/// The same batch on every rank, because all stages work on one batch.
Lines batch_of(int64_t step, int64_t rows) {
  torch::manual_seed(1000 + step);
  const auto truth = torch::rand({rows, 2}) * 2 - 1;
  const auto noise = 0.1 * torch::randn({rows, 16});
  return {truth.narrow(1, 0, 1) * torch::linspace(-1, 1, 16) + truth.narrow(1, 1, 1) + noise, truth};
}

void train() {
  accelerate::Accelerator accelerator;
  accelerator.set_seed(42);

  // The whole model on every rank; the pipeline keeps this rank's layers and releases the others.
  torch::nn::Sequential layers(torch::nn::Linear(16, 64), torch::nn::ReLU(), torch::nn::Linear(64, 64),
                               torch::nn::ReLU(), torch::nn::Linear(64, 64), torch::nn::ReLU(),
                               torch::nn::Linear(64, 2));
  accelerate::nn::Pipeline model(accelerator.group(), std::move(layers), {.micro_batches = 4});
  torch::optim::AdamW optimizer(model.parameters(), 3e-3);
  const auto loss_function = [](const torch::Tensor& output, const torch::Tensor& target) {
    return torch::mse_loss(output, target);
  };

  for (int64_t step = 1; step <= 300; ++step) {
    const auto [points, truth] = batch_of(step, 50);  // micro-batches of 13, 13, 12 and 12 rows
    optimizer.zero_grad();
    const auto loss = model.train_step(points, truth, loss_function);
    model.clip_grad_norm_(1.0);
    optimizer.step();
    if (step % 100 == 0) accelerator.print("step {} loss {:.4f}\n", step, loss.item<double>());
  }

  model.eval();
  const auto [points, truth] = batch_of(0, 1000);
  const auto output = model.forward(points);  // defined on the last rank
  const auto error = output.defined() ? torch::mse_loss(output, truth) : torch::zeros({});
  accelerator.print("error {:.4f} of 1000 lines in {} stages\n", accelerator.reduce(error, "sum").item<float>(),
                    model.layers_per_stage().size());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains a network in pipeline stages, one on each rank");
  return command_line::run(app, argc, argv, train);
}
