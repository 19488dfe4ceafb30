// SPDX-License-Identifier: Apache-2.0
// The fused step with what mixed precision adds to it, as scalars on the device.
#include "accelerate/optim/fused_step.hpp"

#include "tests/stand_in/ranks.hpp"

using stand_in::Tensors;

namespace {

/// A step, one that the flag cancels, and two more.
template <typename Optimizer, typename Options>
Tensors after_four_steps(const Options& options, at::Device device) {
  auto net = stand_in::made_alike([] { return stand_in::SmallNet(); });
  net->to(device);
  Optimizer stock(net->parameters(), options);
  const auto fused = accelerate::optim::FusedStep::recognise(stock);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(uint64_t{3});
  const auto scale = torch::full({}, 4.0, device);
  const auto waits = [&] { return device.is_cpu() ? 0 : stand_in::host_waits(device.index()); };
  for (const double skip : {0.0, 1.0, 0.0, 0.0}) {
    for (const auto& parameter : net->parameters()) {
      parameter.mutable_grad() = at::randn(parameter.sizes(), generator).to(device);
    }
    const auto before = waits();
    CHECK(fused->step({.scale = scale, .skip = torch::full({}, skip, device)}));
    CHECK(waits() == before);
  }
  fused->settle();
  Tensors all = net->parameters();
  for (const auto& parameter : net->parameters()) all.push_back(parameter.grad());
  return stand_in::to_cpu(all);
}

template <typename Optimizer, typename Options>
void steps_alike(const Options& options) {
  const auto expected = after_four_steps<Optimizer>(options, at::kCPU);
  stand_in::at_every_pace(
      [&] {
        const auto found = after_four_steps<Optimizer>(options, stand_in::device());
        for (size_t i = 0; i < expected.size(); ++i) CHECK(at::equal(found[i], expected[i]));
      },
      500);
}

}  // namespace

TEST_CASE("a scale and a skip flag on the device are read there: the CPU's bits, and no wait of the host") {
  steps_alike<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
  steps_alike<torch::optim::Adam>(torch::optim::AdamOptions(1e-2).amsgrad(true));
  steps_alike<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2));
}
