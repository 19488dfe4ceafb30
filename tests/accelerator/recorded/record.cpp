// SPDX-License-Identifier: Apache-2.0
// Wrote the folders of this directory, linked with the library of commit 17f5024 (version 0.1): record FOLDER RANKS
#include "tests/accelerator/recorded/training.hpp"

int main(int, char** arguments) {
  const std::filesystem::path folder = arguments[1];
  accelerate::simulate(std::stoll(arguments[2]), [&] {
    accelerate::Accelerator accelerator({.cpu = true, .gradient_accumulation_steps = 2});
    const auto nothing = [] { return std::pair<int64_t, int64_t>(0, 0); };
    recorded::train(accelerator, recorded::kSavedStep, nothing, [&] { accelerator.save_state(folder); });
  });
}
