// SPDX-License-Identifier: Apache-2.0
// Mixed precision on a real GPU.
#include "tests/testing.hpp"
//
#include "accelerate/accelerate.hpp"
#include "examples/basic_net.hpp"

namespace {

/// Accuracy on the test digits in percent after one epoch.
double learnt_in(accelerate::Precision precision) {
  accelerate::Accelerator accelerator({.mixed_precision = precision, .device = "cuda"});
  accelerator.set_seed(42);
  BasicNet net(/*dropout=*/false);
  const std::string digits = TEST_SOURCE_DIR "/examples/data/mnist";
  using accelerate::data::Split;
  auto [model, optimizer, loader, test_loader] =
      accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-3),
                          accelerate::data::mnist(digits, {.batch_size = 64, .shuffle = true}),
                          accelerate::data::mnist(digits, {.batch_size = 1000}, Split::test));
  for (auto& [images, labels] : loader) {
    optimizer.zero_grad();
    accelerator.backward(torch::nll_loss(model(images), labels));
    optimizer.step();
  }
  CHECK_FALSE(accelerator.optimizer_step_was_skipped());
  const torch::NoGradGuard no_grad;
  int64_t right = 0, seen = 0;
  for (auto& [images, labels] : test_loader) {
    right += model(images).argmax(1).eq(labels).sum().item<int64_t>();
    seen += labels.size(0);
  }
  return 100 * static_cast<double>(right) / static_cast<double>(seen);
}

}  // namespace

TEST_CASE("BasicNet reaches the float32 accuracy in fp16 and bf16 on a GPU within half a point") {
  using accelerate::Precision;
  const double full = learnt_in(Precision::no);
  CHECK(full > 95);
  for (const auto precision : {Precision::fp16, Precision::bf16}) {
    CAPTURE(accelerate::env::mixed_precision_name(precision));
    CHECK(learnt_in(precision) == doctest::Approx(full).epsilon(0.5 / full));
  }
}
