// SPDX-License-Identifier: Apache-2.0
// bench_linear_cross_entropy [ours|stock] [rows] [steps]: forward and backward of GPT-2's last layer with its loss, 768
// features and 50257 classes in float32 on the CPU, and the peak of resident memory of the process.
#include <torch/torch.h>

#include <accelerate/nn/linear_cross_entropy.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

double peak_megabytes() {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    double kilobytes = 0;
    if (word == "VmHWM:" && file >> kilobytes) return kilobytes / 1000;
  }
  throw std::runtime_error("/proc/self/status has no VmHWM");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string which = argc > 1 ? argv[1] : "ours";
  const int64_t rows = argc > 2 ? std::stoll(argv[2]) : 8192, steps = argc > 3 ? std::stoll(argv[3]) : 5;
  torch::manual_seed(1);
  const auto x = torch::randn({rows, 768}).requires_grad_(true);
  const auto weight = (torch::randn({50257, 768}) * 0.02).requires_grad_(true);
  const auto target = torch::randint(50257, {rows});
  const double before = peak_megabytes();
  std::vector<double> times;
  double loss_value = 0, processor_start = 0;
  for (int64_t step = 0; step < steps + 1; ++step) {  // the first is not counted
    if (step == 1) processor_start = static_cast<double>(std::clock());
    x.mutable_grad() = weight.mutable_grad() = torch::Tensor();
    const auto start = std::chrono::steady_clock::now();
    const auto loss = which == "ours" ? accelerate::nn::linear_cross_entropy(x, weight, target)
                                      : torch::cross_entropy_loss(torch::linear(x, weight), target);
    loss.backward();
    loss_value = loss.item<double>();
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  // Time of all threads, which depends less on other work of the machine than the time that passed.
  const double processor =
      (static_cast<double>(std::clock()) - processor_start) / CLOCKS_PER_SEC / static_cast<double>(steps);
  times.erase(times.begin());
  std::sort(times.begin(), times.end());
  std::printf(
      "%s, %lld rows, %d threads: median %.0f ms of %lld (%.0f to %.0f), processor %.0f ms, peak %.0f MB, before the "
      "first step %.0f MB, "
      "loss %.6f\n",
      which.c_str(), static_cast<long long>(rows), at::get_num_threads(), times[times.size() / 2],
      static_cast<long long>(steps), times.front(), times.back(), 1000 * processor, peak_megabytes(), before,
      loss_value);
}
