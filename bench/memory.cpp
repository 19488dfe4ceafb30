// SPDX-License-Identifier: Apache-2.0
// What a training step takes of memory: 25 M float32 parameters and AdamW, so that weights, gradients and two moments
// are 400 MB and activations next to nothing.
#include <accelerate/accelerate.hpp>
#include <fstream>

#include "bench/harness.hpp"
#include "bench/nets.hpp"

namespace {

/// The most that was resident of this process since it started, in bytes.
double peak_bytes() {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    double kilobytes = 0;
    if (word == "VmHWM:" && file >> kilobytes) return kilobytes * 1024;
  }
  throw std::runtime_error("/proc/self/status has no VmHWM");
}

}  // namespace

int main() {
  accelerate::Accelerator accelerator({.cpu = true});
  accelerator.set_seed(1);
  const double before = peak_bytes();
  torch::nn::Sequential net;
  for (int i = 0; i < 25; ++i) net->push_back(torch::nn::Linear(torch::nn::LinearOptions(1000, 1000).bias(false)));
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-3));
  const auto x = torch::randn({8, 1000});
  const auto peak_of_steps = [&](int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) {
      optimizer.zero_grad();
      accelerator.backward(model(x).square().mean());
      optimizer.step();
    }
    return peak_bytes();
  };
  return bench::serve(accelerator.process_index(), bench::about(accelerator),
                      {{"peak", peak_of_steps}, {"added", [&](int64_t n) { return peak_of_steps(n) - before; }}});
}
