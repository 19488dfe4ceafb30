// SPDX-License-Identifier: Apache-2.0
// pipeline: a network in stages on several ranks (nn::Pipeline). The first rank keeps the first layers, the last rank
// keeps the last layers and the loss. --parallelism_config_pp_size sets the number of stages. With more ranks than
// stages, several pipelines average their gradients. Without a launcher all layers are in one process, with the same
// result.
#include <accelerate/accelerate.hpp>

#include "command_line.hpp"

namespace {

/// Returns samples of a line: 16 noisy points, [16], and its slope and height, [2].
accelerate::data::Loader lines(int64_t count, uint64_t seed, int64_t batch_size) {
  torch::manual_seed(seed);
  const auto truth = torch::rand({count, 2}) * 2 - 1;
  const auto noise = 0.1 * torch::randn({count, 16});
  const auto points = truth.narrow(1, 0, 1) * torch::linspace(-1, 1, 16) + truth.narrow(1, 1, 1) + noise;
  return accelerate::data::from_tensors(points, truth, {.batch_size = batch_size, .shuffle = true});
}

torch::Tensor squared_error(const torch::Tensor& output, const torch::Tensor& truth) {
  return torch::mse_loss(output, truth);
}

void train() {
  accelerate::Accelerator accelerator;
  const int64_t pipelines = accelerator.data_parallel_group().size();
  auto train_lines = lines(15000, 1, 50 / pipelines);  // with two pipelines, micro-batches of 7, 6, 6 and 6 rows
  auto test_lines = lines(1000, 2, 100);

  accelerator.set_seed(42);
  // The whole model on every rank; the pipeline keeps this rank's layers and releases the others.
  torch::nn::Sequential layers(torch::nn::Linear(16, 64), torch::nn::ReLU(), torch::nn::Linear(64, 64),
                               torch::nn::ReLU(), torch::nn::Linear(64, 64), torch::nn::ReLU(),
                               torch::nn::Linear(64, 2));
  accelerate::nn::Pipeline net(accelerator.pipeline_parallel_group(), std::move(layers), {.micro_batches = 4});
  torch::optim::AdamW adamw(net.parameters(), 3e-3);
  auto [model, optimizer, loader, test_loader] = accelerator.prepare(net, adamw, train_lines, test_lines);

  double loss = 0;
  for (auto& [points, truth] : loader) {
    optimizer.zero_grad();
    loss = model->train_step(points, truth, squared_error).item<double>();
    accelerator.clip_grad_norm_(model, 1.0);
    optimizer.step();
  }
  accelerator.print("loss of the last batch {:.4f}\n", loss);

  model.eval();
  double sum = 0;
  for (auto& [points, truth] : test_loader) {
    const auto output = model(points);  // defined on the ranks of the last stage
    if (output.defined()) sum += accelerator.gather_for_metrics((output - truth).square().mean(1)).sum().item<double>();
  }
  const auto error = net.has_last_stage() ? sum / 1000 / static_cast<double>(pipelines) : 0;
  accelerator.print("error {:.4f} of 1000 lines in {} stages on {} pipelines\n",
                    accelerator.reduce(torch::tensor(error), "sum").item<double>(), net.layers_per_stage().size(),
                    pipelines);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains a network in pipeline stages, one on each rank");
  return command_line::run(app, argc, argv, train);
}
