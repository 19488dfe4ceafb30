// SPDX-License-Identifier: Apache-2.0
// Saving and loading 100 M float32 parameters with AdamW's state (1.2 GB), and weights alone (0.4 GB).
#include <accelerate/accelerate.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "bench/harness.hpp"
#include "bench/nets.hpp"

namespace fs = std::filesystem;

namespace {

torch::nn::Sequential hundred_million() {
  torch::nn::Sequential net;
  for (int i = 0; i < 25; ++i) net->push_back(torch::nn::Linear(torch::nn::LinearOptions(2000, 2000).bias(false)));
  return net;
}

/// Seconds of the call alone. Asynchronous work that it left is awaited outside the measured time.
double stall(accelerate::Accelerator& accelerator, const fs::path& folder, int64_t iterations) {
  double seconds = 0;
  for (int64_t i = 0; i < iterations + 1; ++i) {  // the first one makes its buffers
    const auto start = std::chrono::steady_clock::now();
    accelerator.save_state(folder, {.async = true});
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    if (i > 0) seconds += taken.count();
    accelerator.wait_for_checkpoint();
  }
  return seconds / static_cast<double>(iterations);
}

}  // namespace

int main() {
  const char* given = std::getenv("ACCELERATE_BENCH_DATA");  // an empty folder of bench/run's
  if (given == nullptr) {
    fmt::print(stderr, "bench_checkpoint: is started by bench/run, which makes its folder\n");
    return 2;
  }
  const fs::path folder = fs::path(given) / "ours";
  accelerate::Accelerator accelerator({.cpu = true});
  auto net = hundred_million();
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-3));
  accelerator.backward(model(torch::randn({8, 2000})).square().mean());
  optimizer.step();
  optimizer.zero_grad();

  accelerate::Accelerator of_weights({.cpu = true});
  auto weights = of_weights.prepare(hundred_million());
  accelerator.save_state(folder / "whole");
  of_weights.save_state(folder / "weights");
  return bench::serve(0, bench::about(accelerator),
                      {bench::timed("save-durable", [&] { accelerator.save_state(folder / "saved"); }),
                       bench::timed("save", [&] { accelerator.save_state(folder / "saved", {.durable = false}); }),
                       {"stall", [&](int64_t iterations) { return stall(accelerator, folder / "saved", iterations); }},
                       bench::timed("load", [&] { accelerator.load_state(folder / "whole"); }),
                       bench::timed("load-weights", [&] { of_weights.load_state(folder / "weights"); })});
}
