// SPDX-License-Identifier: Apache-2.0
// Whole loops on the device are equal to the CPU's, without a race, for any slow streams.
#include "examples/basic_net.hpp"
#include "tests/stand_in/ranks.hpp"

using accelerate::Accelerator;
using stand_in::made_equal;
using stand_in::same_as_on_cpu;
using stand_in::SmallNet;
using stand_in::state_of;
using stand_in::Tensors;
using stand_in::trains_with;

TEST_CASE("BasicNet trains an epoch of 20 steps on 1 and 2 ranks to the CPU's bits") {
  const auto body = [](Accelerator& accelerator) -> Tensors {
    auto net = made_equal([] { return BasicNet(/*dropout=*/false); });
    torch::optim::AdamW adamw(net->parameters(), 1e-3);
    const int64_t samples = 20 * 2 * accelerator.num_processes();
    auto generator = at::make_generator<at::CPUGeneratorImpl>(uint64_t{3});
    auto data = accelerate::data::from_tensors(at::randn({samples, 1, 28, 28}, generator),
                                               at::randint(10, {samples}, generator, at::kLong), {.batch_size = 2});
    auto [model, optimizer, loader] = accelerator.prepare(net, adamw, data);
    int64_t steps = 0;
    Tensors losses;
    for (auto& [images, labels] : loader) {
      optimizer.zero_grad();
      const auto loss = torch::nll_loss(model(images), labels);
      accelerator.backward(loss);
      optimizer.step();
      losses.push_back(loss.detach());
      ++steps;
    }
    CHECK(steps == 20);
    auto all = state_of(model);
    all.push_back(torch::stack(losses));
    return all;
  };
  same_as_on_cpu(body, {}, {1, 2}, 100);
}

TEST_CASE("buckets that are reduced during backward have the CPU's bits, with BatchNorm's buffers") {
  same_as_on_cpu(trains_with<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9)),
                 stand_in::with_small_buckets(), {1, 2, 3});
}

TEST_CASE("fused AdamW, Adam and Adagrad step on the device as on the CPU") {
  same_as_on_cpu(trains_with<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2)));
  same_as_on_cpu(trains_with<torch::optim::Adam>(torch::optim::AdamOptions(1e-2).amsgrad(true)));
  same_as_on_cpu(trains_with<torch::optim::Adagrad>(torch::optim::AdagradOptions(1e-2)));
}

TEST_CASE("an optimizer without a fused kernel steps on the device as on the CPU") {
  struct OfAUser : torch::optim::RMSprop {
    using RMSprop::RMSprop;
  };
  same_as_on_cpu(trains_with<OfAUser>(torch::optim::RMSpropOptions(1e-2)));
}

TEST_CASE("a foreign loader's batches arrive on the device, pinned ones too, and training has the CPU's bits") {
  for (const bool pinned : {false, true}) {
    same_as_on_cpu([pinned](Accelerator& accelerator) -> Tensors {
      auto net = made_equal([] { return SmallNet(); });
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [images, labels] = stand_in::small_data(18);
      std::vector<torch::data::Example<>> batches;
      for (int64_t i = 0; i < 18; i += 3) {
        const auto [x, y] = std::pair(images.narrow(0, i, 3), labels.narrow(0, i, 3));
        batches.push_back(pinned ? torch::data::Example<>(x.pin_memory(), y.pin_memory())
                                 : torch::data::Example<>(x, y));
      }
      auto [model, optimizer, loader] = accelerator.prepare(net, sgd, batches);
      for (auto& batch : loader) {
        CHECK(batch.data.device() == accelerator.device());
        CHECK(batch.target.device() == accelerator.device());
        stand_in::backward_on(accelerator, model, optimizer, batch.data, batch.target);
        optimizer.step();
      }
      return state_of(model);
    });
  }
}
