// SPDX-License-Identifier: Apache-2.0
// Compiled modules with the Accelerator: ranks, accumulation, loss scaling, averages and checkpoints.
#include "tests/nn/compiled_support.hpp"
//
#include <mutex>

#include "accelerate/accelerate.hpp"

using namespace compiled_testing;
using accelerate::Accelerator;

namespace {

using Values = std::vector<at::Tensor>;

Values values_of(const torch::nn::Module& net) {
  Values copies;
  for (const at::Tensor& parameter : net.parameters()) copies.push_back(parameter.detach().clone());
  return copies;
}

double largest_difference(const Values& left, const Values& right) {
  double worst = 0;
  REQUIRE(left.size() == right.size());
  for (size_t i = 0; i < left.size(); ++i) worst = std::max(worst, difference(left[i], right[i]));
  return worst;
}

at::Tensor half_batch(int64_t step, int64_t rank) {
  return torch::arange(24, torch::kDouble).add(100 * step + 50 * rank).reshape({4, 6}).sin();
}

torch::optim::AdamW adamw_of(CompiledModule& net) {
  return torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(1e-2));
}

constexpr int64_t kSteps = 5;

}  // namespace

TEST_CASE("two ranks train like one rank that accumulates both halves of the batch") {
  auto alone = compiled_mlp();
  const Values start = values_of(*alone);
  auto own = adamw_of(alone);
  for (int64_t step = 0; step < kSteps; ++step) {
    own.zero_grad();
    for (const int64_t rank : {0, 1}) (alone->forward(half_batch(step, rank)).square().mean() / 2).backward();
    own.step();
  }
  std::mutex mutex;
  std::vector<Values> of_ranks;
  accelerate::simulate(2, [&] {
    auto net = [&] {
      const std::lock_guard lock(mutex);
      return compiled_mlp();
    }();
    Accelerator accelerator({.cpu = true});
    auto optimizer = adamw_of(net);
    auto [model, prepared] = accelerator.prepare(net, optimizer);
    for (int64_t step = 0; step < kSteps; ++step) {
      prepared.zero_grad();
      accelerator.backward(model(half_batch(step, accelerator.process_index())).square().mean());
      prepared.step();
    }
    const std::lock_guard lock(mutex);
    of_ranks.push_back(values_of(*net));
  });
  CHECK(largest_difference(of_ranks[0], of_ranks[1]) == 0);
  CHECK(largest_difference(of_ranks[0], values_of(*alone)) < 1e-12);
  CHECK(largest_difference(start, values_of(*alone)) > 1e-2);
}

TEST_CASE("accumulation over two micro-batches equals the sum of both by hand") {
  auto by_hand = compiled_mlp();
  auto own = adamw_of(by_hand);
  for (int64_t step = 0; step < kSteps; ++step) {
    own.zero_grad();
    for (const int64_t part : {0, 1}) (by_hand->forward(half_batch(step, part)).square().mean() / 2).backward();
    own.step();
  }
  auto net = compiled_mlp();
  Accelerator accelerator({.cpu = true, .gradient_accumulation_steps = 2});
  auto optimizer = adamw_of(net);
  auto [model, prepared] = accelerator.prepare(net, optimizer);
  for (int64_t batch = 0; batch < 2 * kSteps; ++batch) {
    const auto scope = accelerator.accumulate(model);
    accelerator.backward(model(half_batch(batch / 2, batch % 2)).square().mean());
    prepared.step();
    prepared.zero_grad();
  }
  CHECK(largest_difference(values_of(*net), values_of(*by_hand)) < 1e-12);
}

TEST_CASE("a checkpoint continues the training bit for bit; averages hold the same names") {
  const testing::TemporaryFolder folder;
  const auto train = [](auto& accelerator, auto& model, auto& optimizer, int64_t from) {
    for (int64_t step = from; step < from + kSteps; ++step) {
      optimizer.zero_grad();
      accelerator.backward(model(half_batch(step, 0)).square().mean());
      optimizer.step();
    }
  };
  auto net = compiled_mlp();
  auto own = adamw_of(net);
  Accelerator accelerator({.cpu = true});
  auto [model, optimizer] = accelerator.prepare(net, own);
  accelerate::optim::ExponentialMovingAverage ema(model, {.decay = 0.5});
  train(accelerator, model, optimizer, 0);
  ema.update();
  accelerator.save_state(folder / "state");
  train(accelerator, model, optimizer, kSteps);
  const Values expected = values_of(*net);
  {
    const auto averaged = ema.average_parameters();
    CHECK(largest_difference(values_of(*net), expected) > 1e-3);
  }
  accelerator.load_state(folder / "state");
  CHECK(largest_difference(values_of(*net), expected) > 1e-3);
  train(accelerator, model, optimizer, kSteps);
  CHECK(largest_difference(values_of(*net), expected) == 0);
}
