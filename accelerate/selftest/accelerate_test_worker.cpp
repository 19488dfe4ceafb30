// SPDX-License-Identifier: Apache-2.0
// A rank of accelerate_test; torchrun, mpirun and srun start it as well.
#include "accelerate/selftest/checks.hpp"

int main() {
  try {
    accelerate::Accelerator accelerator;
    const auto say = [](const std::string& line) {
      fmt::print("{}\n", line);
      std::fflush(stdout);
    };
    if (accelerator.is_main_process()) {
      say(fmt::format("{} ranks, backend {}, device {}", accelerator.num_processes(), accelerator.group().backend(),
                      accelerator.device().str()));
    }
    auto checks = selftest::collectives();
    for (auto& check : selftest::training()) checks.push_back(std::move(check));
    const int64_t failed = selftest::run_checks(accelerator, checks, say);
    if (accelerator.is_main_process()) {
      say(failed == 0 ? fmt::format("all {} checks passed", checks.size())
                      : fmt::format("{} of {} checks failed", failed, checks.size()));
    }
    return failed == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "accelerate_test: {}\n", error.what());
    return 1;
  }
}
