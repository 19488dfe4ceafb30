// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <set>

#include "accelerate/accelerate.hpp"
#include "tests/accelerator/ranks.hpp"
#include "tests/world.hpp"

namespace {

struct Counting : torch::data::Dataset<Counting> {
  torch::data::Example<> get(size_t index) override {
    return {torch::full({1}, static_cast<double>(index)), torch::full({1}, static_cast<int64_t>(index))};
  }
  [[nodiscard]] std::optional<size_t> size() const override { return 96; }
};

}  // namespace

TEST_CASE("differently seeded ranks have one order of LibTorch's shuffled loader, for any other draws") {
  accelerate::Accelerator accelerator(testing::world(), {});
  accelerator.set_seed(42, {.device_specific = true});
  auto plain = torch::data::make_data_loader(Counting().map(torch::data::transforms::Stack<>()), 4);
  auto loader = accelerator.prepare(plain);
  std::vector<std::vector<int64_t>> passes(3);
  for (auto& pass : passes) {
    for (auto& batch : loader) {
      (void)torch::rand({accelerator.process_index() + 1});  // dropout
      for (const int64_t sample : numbers(accelerator.gather(batch.target))) pass.push_back(sample);
    }
    CHECK(pass.size() == 96);
    CHECK(std::set<int64_t>(pass.begin(), pass.end()).size() == 96);
  }
  CHECK(passes[0] != passes[1]);
  CHECK(passes[1] != passes[2]);
}

TEST_CASE("a pass restores a rank's random state; rank 0's continues after the order") {
  accelerate::Accelerator accelerator(testing::world(), {});
  accelerator.set_seed(7, {.device_specific = true});
  auto plain = torch::data::make_data_loader(Counting().map(torch::data::transforms::Stack<>()), 4);
  auto loader = accelerator.prepare(plain);

  accelerator.set_seed(7, {.device_specific = true});
  if (accelerator.is_main_process()) (void)torch::randperm(96);  // the sampler's random numbers
  (void)torch::randn({3});
  const auto expected = torch::rand({8});

  accelerator.set_seed(7, {.device_specific = true});
  torch::Tensor drawn;
  for ([[maybe_unused]] auto& batch : loader) {
    if (drawn.defined()) continue;
    (void)torch::randn({3});
    drawn = torch::rand({8});
  }
  CHECK(drawn.equal(expected));
}
