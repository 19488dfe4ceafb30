// SPDX-License-Identifier: Apache-2.0
// The fused step with scale and skip flag of mixed precision as scalars on the device.
#include "accelerate/optim/fused_step.hpp"

#include <algorithm>

#include "accelerate/optim/ema.hpp"
#include "tests/stand_in/ranks.hpp"

using stand_in::Tensors;

namespace {

/// One step, one that the flag cancels, and two more.
template <typename Optimizer, typename Options>
Tensors after_four_steps(const Options& options, at::Device device) {
  auto net = stand_in::made_equal([] { return stand_in::SmallNet(); });
  net->to(device);
  Optimizer stock(net->parameters(), options);
  const auto fused = accelerate::optim::FusedStep::for_optimizer(stock);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(uint64_t{3});
  const auto number = at::TensorOptions(device).dtype(at::kFloat);
  const auto scale = torch::full({}, 4.0, number);
  const auto waits = [&] { return device.is_cpu() ? 0 : stand_in::host_waits(device.index()); };
  for (const double skip : {0.0, 1.0, 0.0, 0.0}) {
    for (const auto& parameter : net->parameters()) {
      parameter.mutable_grad() = at::randn(parameter.sizes(), generator).to(device);
    }
    const auto before = waits();
    CHECK(fused->step({.scale = scale, .skip = torch::full({}, skip, number)}));
    CHECK(waits() == before);
  }
  fused->discard_skipped_steps();
  Tensors all = net->parameters();
  for (const auto& parameter : net->parameters()) all.push_back(parameter.grad());
  return stand_in::to_cpu(all);
}

/// \param tolerance  0 for equal bits; on a GPU up to rounding.
template <typename Optimizer, typename Options>
void steps_in_lockstep(const Options& options, double tolerance = 0) {
  const stand_in::DefaultDtype dtype(accelerate::Precision::no);
  if (stand_in::on_gpu()) tolerance = std::max(tolerance, 1e-9);
  const auto expected = after_four_steps<Optimizer>(options, at::kCPU);
  stand_in::at_every_pace(
      [&] {
        const auto found = after_four_steps<Optimizer>(options, stand_in::device());
        for (size_t i = 0; i < expected.size(); ++i) CHECK(at::allclose(found[i], expected[i], 0, tolerance));
      },
      500);
}

}  // namespace

TEST_CASE("scale and skip flag are read on the device: the CPU's bits, without a wait of the host") {
  steps_in_lockstep<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
  steps_in_lockstep<torch::optim::Adam>(torch::optim::AdamOptions(1e-2).amsgrad(true));
  steps_in_lockstep<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2));
  steps_in_lockstep<torch::optim::Adagrad>(torch::optim::AdagradOptions(1e-2).lr_decay(0.1));
}

TEST_CASE("RMSprop uses other operators on a device: the CPU's numbers to rounding, no wait of the host") {
  using torch::optim::RMSpropOptions;
  steps_in_lockstep<torch::optim::RMSprop>(RMSpropOptions(1e-3).eps(1e-4), 1e-6);
  steps_in_lockstep<torch::optim::RMSprop>(
      RMSpropOptions(1e-3).eps(1e-2).momentum(0.9).centered(true).weight_decay(0.1), 1e-5);
}

TEST_CASE("a flag above 1, as a sum over ranks, skips too; NaN gradients have no effect then") {
  stand_in::at_every_pace([] {
    const auto device = stand_in::device();
    const auto weight = torch::ones({3}).to(device).requires_grad_();
    torch::optim::RMSprop rmsprop({weight}, torch::optim::RMSpropOptions(0.1).momentum(0.9));
    torch::optim::AdamW adamw({weight}, 0.1);
    for (torch::optim::Optimizer* optimizer :
         {static_cast<torch::optim::Optimizer*>(&rmsprop), static_cast<torch::optim::Optimizer*>(&adamw)}) {
      weight.mutable_grad() = torch::full({3}, std::nan(""), device);
      const auto fused = accelerate::optim::FusedStep::for_optimizer(*optimizer);
      CHECK(fused->step({.skip = torch::full({}, 2.0, device)}));
      CHECK(at::equal(weight.detach().cpu(), torch::ones({3})));
    }
    const auto& state = static_cast<torch::optim::RMSpropParamState&>(*rmsprop.state().begin()->second);
    CHECK(at::equal(state.square_avg().cpu(), torch::zeros({3})));
    CHECK(at::equal(state.momentum_buffer().cpu(), torch::zeros({3})));
  });
}

TEST_CASE("skipped steps do not reduce the step count of a state that is loaded later") {
  const auto device = stand_in::device();
  const auto weight = torch::ones({3}).to(device).requires_grad_();
  torch::optim::AdamW optimizer({weight}, 0.1);
  const auto fused = accelerate::optim::FusedStep::for_optimizer(optimizer);
  weight.mutable_grad() = torch::ones({3}, device);
  for (int step = 0; step < 3; ++step) CHECK(fused->step({.skip = torch::ones({}, device)}));
  auto loaded = std::make_unique<torch::optim::AdamWParamState>();
  loaded->step(5);
  optimizer.state()[weight.unsafeGetTensorImpl()] = std::move(loaded);
  CHECK(fused->step({.skip = torch::zeros({}, device)}));
  fused->discard_skipped_steps();
  CHECK(static_cast<torch::optim::AdamWParamState&>(*optimizer.state().begin()->second).step() == 6);
}

TEST_CASE("an average of weights and a copied count use the skip flag on the device without a wait") {
  using accelerate::optim::EmaWarmup;
  const auto averaged = [](at::Device device, EmaWarmup warmup) {
    const auto weight = torch::ones({3}), count = torch::zeros({}, torch::kLong);
    accelerate::optim::ExponentialMovingAverage ema({accelerate::state::whole_parameter("w", weight)},
                                                    {.decay = 0.75, .warmup = warmup, .use_buffers = true},
                                                    {accelerate::state::whole_parameter("count", count)});
    weight.set_data(weight.to(device));
    count.set_data(count.to(device));
    int64_t step = 0;
    for (const double skip : {1.0, 0.0, 0.0, 2.0, 0.0}) {
      weight.fill_(static_cast<double>(1 << ++step));
      count.fill_(step);
      const auto flag = torch::full({}, skip, device);
      const auto waits = [&] { return device.is_cpu() ? 0 : stand_in::host_waits(device.index()); };
      if (step == 1) ema.update(flag);  // this one moves the average
      const auto before = waits();
      if (step > 1) ema.update(flag);
      CHECK(waits() == before);
      if (step > 1) CHECK(ema.averages()[1].item<int64_t>() == (skip == 0 ? step : step - 1));
    }
    CHECK(ema.updates() == 3);
    return ema.averages()[0].cpu();
  };
  for (const auto warmup : {EmaWarmup::none, EmaWarmup::ratio, EmaWarmup::power}) {
    const auto expected = averaged(at::kCPU, warmup);
    stand_in::at_every_pace([&] { CHECK(at::allclose(averaged(stand_in::device(), warmup), expected, 1e-6)); });
  }
}
