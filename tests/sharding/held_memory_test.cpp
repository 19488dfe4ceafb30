// SPDX-License-Identifier: Apache-2.0
// Bytes of LibTorch on the CPU between steps and within a step: the table of docs/explanation/sharded_training.md.
#include "tests/testing.hpp"
//
#include "accelerate/accelerate.hpp"
#include "tests/sharding/counting_allocator.hpp"
#include "tests/sharding/models.hpp"

// Test files are compiled together, and others have helpers of the same names.
namespace held_memory_testing {

using accelerate::Accelerator;
using accelerate::ShardingStrategy;
using sharding_testing::AnyNet;
using enum accelerate::ShardingStrategy;

namespace {

constexpr int64_t kWidth = 128, kLayers = 8, kRanks = 2;
constexpr int64_t kUnit = kWidth * kWidth * 4, kModel = kLayers * kUnit, kStates = 2 * kModel;  // of AdamW

/// Bytes of all ranks together.
struct Measured {
  int64_t held = 0;     ///< between steps
  int64_t in_step = 0;  ///< the most within a step, in addition
};

std::shared_ptr<AnyNet> wide_net() {
  torch::nn::Sequential layers;
  for (int64_t i = 0; i < kLayers; ++i) {
    layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
  }
  auto net = std::make_shared<AnyNet>([layers](const torch::Tensor& x) mutable { return layers->forward(x); });
  net->register_module("layers", layers);
  return net;
}

Measured measure(ShardingStrategy strategy) {
  const sharding_testing::CountedMemory counted;
  auto& memory = counted.counts;
  Measured measured;
  accelerate::simulate(kRanks, [&] {
    Accelerator accelerator({.cpu = true, .sharding = strategy, .fsdp_plugin = {.min_num_params = 1000}});
    const bool is_first = accelerator.process_index() == 0;
    const int64_t before = memory.held;
    accelerator.wait_for_everyone();
    const auto net = wide_net();
    torch::optim::AdamW adamw(net->parameters(), 1e-3);
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    const auto x = torch::ones({1, kWidth});
    for (int64_t i = 0; i < 3; ++i) {
      accelerator.wait_for_everyone();
      if (is_first) memory.peak = memory.held;
      accelerator.wait_for_everyone();
      accelerator.backward(model(x).mean());
      optimizer.step();
      optimizer.zero_grad();
    }
    accelerator.wait_for_everyone();
    if (is_first) measured = {.held = memory.held - before, .in_step = memory.peak - memory.held};
    accelerator.wait_for_everyone();
  });
  return measured;
}

/// 2 % for counts and small tensors.
void check_held(const Measured& measured, int64_t expected) {
  CHECK(measured.held >= expected);
  CHECK(measured.held < expected * 102 / 100 + (1 << 16));
}

}  // namespace

TEST_CASE(
    "with full_shard a rank holds its part of parameters and states between steps, and two units more in a step") {
  const auto measured = measure(full_shard);
  check_held(measured, kModel + kStates);
  // Two whole units of parameters and two of gradients, and the part of all gradients.
  CHECK(measured.in_step < kRanks * 4 * kUnit + kModel + kUnit / 2);
}

TEST_CASE("with shard_grad_op a rank holds the parameters and its part of the states between steps") {
  const auto measured = measure(shard_grad_op);
  check_held(measured, kRanks * kModel + kStates);
  // The part of all gradients, and a copy of the part of all parameters, which is sent after the step.
  CHECK(measured.in_step < 2 * kModel + kUnit / 2);
}

TEST_CASE("with shard_optim_op a rank holds parameters, gradients and its part of the states between steps") {
  const auto measured = measure(shard_optim_op);
  check_held(measured, kRanks * 2 * kModel + kStates);
}

}  // namespace held_memory_testing
