// SPDX-License-Identifier: Apache-2.0
// Compiled modules with the Accelerator: ranks, accumulation, loss scaling, averages and checkpoints.
#include "tests/nn/compiled_training.hpp"
//
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

using namespace compiled_testing;
using accelerate::Accelerator;

TEST_CASE("two ranks train like one rank that accumulates both halves of the batch") {
  std::mutex mutex;
  std::vector<Values> of_ranks;
  accelerate::simulate(2, [&] {
    Accelerator accelerator({.cpu = true});
    const Values values = train_on_ranks(accelerator, compiled_mlp());
    const std::lock_guard lock(mutex);
    of_ranks.push_back(values);
  });
  const Values by_hand = train_by_hand(2);
  CHECK(largest_difference(of_ranks[0], of_ranks[1]) == 0);
  CHECK(largest_difference(of_ranks[0], by_hand) < 1e-12);
  CHECK(largest_difference(values_of(*compiled_mlp()), by_hand) > 1e-2);
}

TEST_CASE("accumulation over two micro-batches equals the sum of both by hand") {
  auto net = compiled_mlp();
  Accelerator accelerator({.cpu = true, .gradient_accumulation_steps = 2});
  auto adamw = adamw_of(net);
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  for (int64_t batch = 0; batch < 2 * kTrainingSteps; ++batch) {
    const auto scope = accelerator.accumulate(model);
    accelerator.backward(model(part_of_batch(batch / 2, batch % 2)).square().mean());
    optimizer.step();
    optimizer.zero_grad();
  }
  CHECK(largest_difference(values_of(*net), train_by_hand(2)) < 1e-12);
}

TEST_CASE("loss scaling scales the gradients of compiled code, and the step is the same") {
  const auto train = [](std::optional<accelerate::Precision> precision) {
    CompiledModule net(package("block"), kTrusted);
    Accelerator accelerator({.cpu = true, .mixed_precision = precision, .grad_scaler = {.init_scale = 1024.0}});
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.backward(model(torch::ones({5, 4})).sum());
    const double gradient = net->parameters()[1].grad().abs().max().item<double>();
    optimizer.step();
    return std::pair(gradient, values_of(*net));
  };
  const auto [plain_gradient, plain] = train({});
  const auto [scaled_gradient, scaled] = train(accelerate::Precision::fp16);
  CHECK(scaled_gradient == doctest::Approx(1024 * plain_gradient));
  CHECK(largest_difference(scaled, plain) < 1e-6);
}

TEST_CASE("a checkpoint continues the training bit for bit; averages hold the same names") {
  const testing::TemporaryFolder folder;
  const auto train = [](auto& accelerator, auto& model, auto& optimizer, int64_t from) {
    for (int64_t step = from; step < from + kTrainingSteps; ++step) {
      optimizer.zero_grad();
      accelerator.backward(model(part_of_batch(step, 0)).square().mean());
      optimizer.step();
    }
  };
  auto net = compiled_mlp();
  auto adamw = adamw_of(net);
  Accelerator accelerator({.cpu = true});
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  accelerate::optim::ExponentialMovingAverage ema(model, {.decay = 0.5});
  train(accelerator, model, optimizer, 0);
  ema.update();
  accelerator.save_state(folder / "state");
  train(accelerator, model, optimizer, kTrainingSteps);
  const Values expected = values_of(*net);
  {
    const auto averaged = ema.average_parameters();
    CHECK(largest_difference(values_of(*net), expected) > 1e-3);
  }
  accelerator.load_state(folder / "state");
  CHECK(largest_difference(values_of(*net), expected) > 1e-3);
  train(accelerator, model, optimizer, kTrainingSteps);
  CHECK(largest_difference(values_of(*net), expected) == 0);
}

TEST_CASE("threads load packages at the same time") {
  for (int round = 0; round < 10; ++round) {
    CAPTURE(round);
    accelerate::simulate(4, [] {
      const auto batch = part_of_batch(0, 0);
      CHECK(difference(compiled_mlp()->forward(batch), compiled_mlp()->forward(batch)) == 0);
    });
  }
}

TEST_CASE("gradients of compiled blocks are reduced while the backward of earlier blocks is still due") {
  constexpr int64_t blocks = 4;
  accelerate::simulate(2, [] {
    int64_t reduced = 0;
    accelerate::AcceleratorOptions options{.cpu = true, .buckets = {.cap_bytes = 1, .first_cap_bytes = 1}};
    options.comm_hook = accelerate::gradient::comm_hook(
        [&](const accelerate::gradient::GradientBucket& bucket, const accelerate::comm::Group& group) {
          ++reduced;
          group.all_reduce(bucket.gradients, accelerate::comm::ReduceOp::mean);
          return bucket.gradients;
        });
    Accelerator accelerator(options);
    const CompiledPackage block(package("block"), kTrusted);
    std::vector<CompiledModule> modules;
    torch::nn::Sequential net;
    for (int64_t i = 0; i < blocks; ++i) {
      modules.push_back(block.module());
      net->push_back(modules.back());
    }
    const auto model = accelerator.prepare(net);
    for (int step = 0; step < 2; ++step) {
      reduced = 0;
      int64_t before_first = 0;
      at::Tensor output = modules[0]->forward(torch::ones({5, 4}));
      output.register_hook([&](const at::Tensor&) { before_first = reduced; });
      for (size_t i = 1; i < modules.size(); ++i) output = modules[i]->forward(output);
      accelerator.backward(output.sum());
      if (step > 0) CHECK(before_first == 2 * (blocks - 1));  // weights and biases; the first step finds the order
      CHECK(reduced == 2 * blocks);
    }
  });
}
