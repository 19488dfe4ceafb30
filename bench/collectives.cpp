// SPDX-License-Identifier: Apache-2.0
// Sum of one float32 tensor over the ranks.
#include <accelerate/accelerate.hpp>

#include "bench/harness.hpp"
#include "bench/nets.hpp"

namespace {

const std::vector<std::pair<std::string, int64_t>> sizes{{"1KB", 1 << 10}, {"1MB", 1 << 20}, {"25MB", 25 << 20}};

torch::Tensor zeros(int64_t bytes, at::Device device) {
  return torch::zeros({bytes / 4}, torch::TensorOptions(device).dtype(torch::kFloat));
}

/// Two ranks as threads of this process.
double threads_round(int64_t bytes, int64_t iterations) {
  double seconds = 0;
  accelerate::comm::run_threads(2, [&](accelerate::comm::Group group) {
    const auto tensor = zeros(bytes, torch::kCPU);
    const double mine = bench::seconds_per_step(iterations, [&] { group.all_reduce(tensor); });
    if (group.rank() == 0) seconds = mine;
  });
  return seconds;
}

}  // namespace

int main() {
  accelerate::Accelerator accelerator;
  std::vector<bench::Case> cases;
  for (const auto& [name, bytes] : sizes) {
    const auto tensor = zeros(bytes, accelerator.device());
    cases.push_back(bench::timed(name, [&accelerator, tensor] { accelerator.group().all_reduce(tensor); }));
    cases.push_back({"threads-" + name, [bytes = bytes](int64_t n) { return threads_round(bytes, n); }});
  }
  return bench::serve(accelerator.process_index(), bench::about(accelerator), cases);
}
