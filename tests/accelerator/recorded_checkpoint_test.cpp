// SPDX-License-Identifier: Apache-2.0
// Checkpoints that version 0.1 (commit 17f5024) wrote continue as a training that was never interrupted.
#include "tests/testing.hpp"
//
#include "tests/accelerator/recorded/training.hpp"

namespace fs = std::filesystem;

namespace {

recorded::Result train(int64_t ranks,
                       const std::function<std::pair<int64_t, int64_t>(accelerate::Accelerator&)>& load) {
  recorded::Result result;
  accelerate::simulate(ranks, [&] {
    accelerate::Accelerator accelerator({.cpu = true, .gradient_accumulation_steps = 2});
    auto mine = recorded::train(
        accelerator, recorded::kLastStep, [&] { return load(accelerator); }, [] {});
    if (accelerator.is_main_process()) result = std::move(mine);
  });
  return result;
}

}  // namespace

TEST_CASE("a checkpoint of version 0.1 continues as if it had not been interrupted") {
  for (const int64_t ranks : {1, 2}) {
    CAPTURE(ranks);
    const fs::path folder =
        fs::path(TEST_SOURCE_DIR "/tests/accelerator/recorded") / ("ranks_" + std::to_string(ranks));
    const auto whole = train(ranks, [](auto&) { return std::pair<int64_t, int64_t>(0, 0); });
    const auto resumed = train(ranks, [&](accelerate::Accelerator& accelerator) {
      const auto loaded = accelerator.load_state(folder);
      CHECK(loaded.step == recorded::kSavedStep);
      return std::pair(loaded.step, loaded.epoch);
    });
    CHECK(resumed.rate == whole.rate);
    CHECK(resumed.seen == whole.seen);
    REQUIRE(resumed.tensors.size() == whole.tensors.size());
    for (const auto& [name, tensor] : whole.tensors) {
      CAPTURE(name);
      CHECK(torch::allclose(resumed.tensors.at(name), tensor, /*rtol=*/1e-12, /*atol=*/1e-12));
    }
  }
}
