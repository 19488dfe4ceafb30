// SPDX-License-Identifier: Apache-2.0
// A program that computes, starts itself as ranks twice, computes again, and runs ranks as threads.
#include <accelerate/accelerate.hpp>

namespace {

// The sum over all ranks of rank + 1, on every rank.
double sum_of_ranks() {
  accelerate::Accelerator accelerator({.cpu = true});
  const auto mine = torch::full({1}, static_cast<double>(accelerator.process_index() + 1));
  const double sum = accelerator.reduce(mine).item<double>();
  accelerator.print("{} ranks, {}, {}: {}\n", accelerator.num_processes(), accelerator.group().backend(),
                    accelerate::env::mixed_precision_name(accelerator.mixed_precision()), sum);
  return sum;
}

void ranks_of_processes(double expected, const accelerate::WorkerOptions& options) {
  accelerate::launch_workers(
      [](const std::string& sum) {
        if (sum_of_ranks() != std::stod(sum)) throw std::runtime_error("the sum is wrong");
      },
      2,
      {.backend = options.backend,
       .cpu = true,
       .mixed_precision = options.mixed_precision,
       .argument = std::to_string(expected)});
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> backends(argv + 1, argv + argc);
  torch::rand({512, 512}).mm(torch::rand({512, 512}));  // starts LibTorch's threads
  for (const std::string& backend : backends) {
    ranks_of_processes(3, {.backend = backend, .mixed_precision = accelerate::Precision::bf16});
    try {
      ranks_of_processes(4, {.backend = backend});
    } catch (const accelerate::Error& error) {
      fmt::print("{}\n", error.what());
    }
  }
  accelerate::run_threads([] { sum_of_ranks(); }, 3);
  fmt::print("{:.1f}\n", torch::ones({2}).sum().item<double>());
}
