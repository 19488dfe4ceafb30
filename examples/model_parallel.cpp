// SPDX-License-Identifier: Apache-2.0
// model_parallel [--devices DEVICE DEVICE]: one network on two devices of one process, for models that do not fit on
// one device. It trains in three ways: on one device; on two devices in turn, of which one always waits; and with
// micro-batches, which keep both busy (nn::Pipeline). The losses are equal up to rounding. CPU devices share the
// processor's cores, so their times show only the additional work.
#include <ATen/DeviceAccelerator.h>
#include <fmt/format.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <accelerate/pipeline/pipeline.hpp>
#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "command_line.hpp"

namespace {

using Devices = std::vector<torch::Device>;

struct Options {
  std::vector<std::string> devices;
  int64_t steps = 200;
  int64_t rows = 256;
  int64_t width = 256;
  int64_t micro_batches = 4;
};

/// Points on lines with noise, and slope and height of the lines.
struct Lines {
  torch::Tensor points;  // [B, 16]
  torch::Tensor truth;   // [B, 2]
};

Lines batch_of(int64_t step, int64_t rows, const torch::Device& device) {
  torch::manual_seed(static_cast<uint64_t>(1000 + step));
  const auto truth = torch::rand({rows, 2}) * 2 - 1;
  const auto noise = 0.1 * torch::randn({rows, 16});
  const auto points = truth.narrow(1, 0, 1) * torch::linspace(-1, 1, 16) + truth.narrow(1, 1, 1) + noise;
  return {points.to(device), truth.to(device)};
}

/// The first and the second half of the network, with the same initial values at each call.
std::vector<torch::nn::Sequential> halves(int64_t width) {
  torch::manual_seed(42);
  using torch::nn::Linear, torch::nn::ReLU, torch::nn::Sequential;
  Sequential front(Linear(16, width), ReLU(), Linear(width, width), ReLU(), Linear(width, width), ReLU());
  Sequential back(Linear(width, width), ReLU(), Linear(width, width), ReLU(), Linear(width, 2));
  return {front, back};
}

/// Each half is on its own device. The activations move to the second device, and autograd moves their gradients back.
struct TwoDeviceNetImpl : torch::nn::Module {
  TwoDeviceNetImpl(const Devices& devices, int64_t width) : second(devices.at(1)) {
    const auto parts = halves(width);
    front = register_module("front", parts[0]);
    back = register_module("back", parts[1]);
    front->to(devices.at(0));
    back->to(second);
  }
  torch::Tensor forward(const torch::Tensor& x) { return back->forward(front->forward(x).to(second)); }

  torch::Device second;
  torch::nn::Sequential front{nullptr}, back{nullptr};
};
TORCH_MODULE(TwoDeviceNet);

accelerate::nn::Pipeline pipeline_of(const Devices& devices, const Options& options) {
  torch::nn::Sequential layers;
  std::vector<int64_t> layers_per_stage;
  for (const auto& half : halves(options.width)) {
    for (const auto& layer : *half) layers->push_back(layer);
    layers_per_stage.push_back(static_cast<int64_t>(half->size()));
  }
  return {devices,
          std::move(layers),
          {.micro_batches = options.micro_batches, .layers_per_stage = std::move(layers_per_stage)}};
}

struct Result {
  std::vector<double> losses;  // of each step
  double seconds = 0;          // median time of a step
};

/// Largest difference of the losses of the first ten steps. Later steps amplify the rounding.
double difference_of(const Result& one, const Result& other) {
  double difference = 0;
  for (size_t step = 0; step < std::min<size_t>(one.losses.size(), 10); ++step) {
    difference = std::max(difference, std::abs(one.losses[step] - other.losses[step]));
  }
  return difference;
}

/// \param gradients  Forward and backward of one batch; returns the loss.
Result train(std::vector<torch::Tensor> parameters, const Devices& devices, const Options& options,
             const std::function<torch::Tensor(const Lines&)>& gradients) {
  torch::optim::AdamW optimizer(std::move(parameters), 1e-3);
  Result result;
  std::vector<double> seconds;
  for (int64_t step = 0; step < options.steps; ++step) {
    Lines lines = batch_of(step, options.rows, devices.front());
    lines.truth = lines.truth.to(devices.back());
    const auto start = std::chrono::steady_clock::now();
    optimizer.zero_grad();
    const auto loss = gradients(lines);
    optimizer.step();
    result.losses.push_back(loss.item<double>());  // waits for the devices
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::ranges::nth_element(seconds, seconds.begin() + options.steps / 2);
  result.seconds = seconds[static_cast<size_t>(options.steps / 2)];
  return result;
}

Result train_in_turn(const Devices& devices, const Options& options) {
  TwoDeviceNet net(devices, options.width);
  return train(net->parameters(), devices, options, [&](const Lines& lines) {
    const auto loss = torch::mse_loss(net(lines.points), lines.truth);
    loss.backward();
    return loss.detach();
  });
}

Result train_pipelined(const Devices& devices, const Options& options) {
  auto net = pipeline_of(devices, options);
  return train(net.parameters(), devices, options, [&](const Lines& lines) {
    return net.train_step(lines.points, lines.truth, [](const torch::Tensor& output, const torch::Tensor& target) {
      return torch::mse_loss(output, target);
    });
  });
}

/// The given devices, or the first two of the machine's accelerators, or the CPU twice.
Devices devices_of(const std::vector<std::string>& names) {
  if (!names.empty()) return {names.begin(), names.end()};
  const auto type = at::getAccelerator();
  if (!type || at::accelerator::deviceCount() < 2) return {torch::kCPU, torch::kCPU};
  return {torch::Device(*type, 0), torch::Device(*type, 1)};
}

void compare(const Options& options) {
  const Devices devices = devices_of(options.devices);
  const Result alone = train_in_turn({devices[0], devices[0]}, options);
  double difference = 0;
  const auto report = [&](const std::string& way, const Result& result) {
    fmt::print("{:36} loss {:.5f}, {:.2f} ms per step, {:.2f} times as long as one device\n", way, result.losses.back(),
               1e3 * result.seconds, result.seconds / alone.seconds);
    difference = std::max(difference, difference_of(result, alone));
  };
  const std::string both = devices[0].str() + " and " + devices[1].str();
  report(devices[0].str(), alone);
  report(both + " in turn", train_in_turn(devices, options));
  report(fmt::format("{}, {} micro-batches", both, options.micro_batches), train_pipelined(devices, options));
  fmt::print("loss {:.5f}; in the first steps the losses differ by at most {:.7f}\n", alone.losses.back(), difference);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a network on two devices of one process: in turn, and with micro-batches");
  const auto some = CLI::Range(int64_t{1}, int64_t{1'000'000});
  app.add_option("--devices", options.devices, "Two devices, such as cuda:0 cuda:1. A device may be given twice.")
      ->expected(2);
  app.add_option("--steps", options.steps, "Batches that each way trains")->check(some)->capture_default_str();
  app.add_option("--rows", options.rows, "Samples of a batch")->check(some)->capture_default_str();
  app.add_option("--width", options.width, "Features of the hidden layers")->check(some)->capture_default_str();
  app.add_option("--micro_batches", options.micro_batches, "Parts of a batch in the pipeline")
      ->check(some)
      ->capture_default_str();
  return command_line::run(app, argc, argv, [&] { compare(options); });
}
