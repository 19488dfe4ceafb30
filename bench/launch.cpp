// SPDX-License-Identifier: Apache-2.0
// First all-reduce of a newly started program; rank 0 prints when the result is ready.
#include <accelerate/accelerate.hpp>

int main() {
  accelerate::Accelerator accelerator;
  const auto one = torch::ones({1}, accelerator.device());
  accelerator.group().all_reduce(one);
  const bool right = one.item<double>() == static_cast<double>(accelerator.num_processes());
  if (accelerator.is_main_process() && right) {
    fmt::print("reduced\n");
    std::fflush(stdout);
  }
  return right ? 0 : 1;
}
