// SPDX-License-Identifier: Apache-2.0
// Sharded training on the device: the CPU's numbers, no race, and no wait of the host for the device.
#include "accelerate/deferred/deferred_tensor.hpp"
#include "tests/stand_in/ranks.hpp"
#include "tests/temporary_folder.hpp"

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using accelerate::ShardingStrategy;
using stand_in::same_as_on_cpu;
using stand_in::Tensors;

namespace {

AcceleratorOptions sharded(ShardingStrategy strategy) {
  return {.fsdp_plugin = {.sharding_strategy = strategy, .min_num_params = 20}};
}

/// Only operators that autocast treats in the same way on every device.
struct UnnormalizedNetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& images) { return last(torch::relu(hidden(images.flatten(1)))); }
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(36, 16));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(16, 5));
};
TORCH_MODULE(UnnormalizedNet);

/// Its backward throws on request, after it started to reduce the gradients of `last`.
struct ThrowingNetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& images) {
    const auto x = torch::relu(hidden(images.flatten(1)));
    if (throws) x.register_hook([](const at::Tensor&) { throw std::runtime_error("in backward"); });
    return last(x);
  }
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(36, 16));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(16, 5));
  bool throws = false;
};
TORCH_MODULE(ThrowingNet);

/// Has no memory before prepare() moves it to the device.
struct DeferredNet : stand_in::SmallNet {
  DeferredNet() : SmallNet(accelerate::init_empty_weights([] { return stand_in::SmallNet(); })) {}
};

template <typename Optimizer, typename Net = stand_in::SmallNet, typename Options>
auto trains_sharded(const Options& options) {
  return [options](Accelerator& accelerator) -> Tensors {
    stand_in::Job<Net, Optimizer> job(accelerator, options);
    auto& [model, optimizer, loader] = job.prepared;
    for (auto& [images, labels] : loader) {
      stand_in::backward_on(accelerator, model, optimizer, images, labels);
      (void)accelerator.clip_grad_norm_(model, 0.5);
      optimizer.step();
    }
    const auto whole = Accelerator::summon_full_params(model);
    Tensors copies;
    for (const auto& tensor : stand_in::state_of(model)) copies.push_back(tensor.cpu().clone());
    return copies;
  };
}

}  // namespace

TEST_CASE("sharded training on 1 to 3 devices has the CPU's numbers without a race") {
  for (const auto strategy :
       {ShardingStrategy::shard_optim_op, ShardingStrategy::shard_grad_op, ShardingStrategy::full_shard}) {
    CAPTURE(strategy_name(strategy));
    same_as_on_cpu(trains_sharded<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2)), sharded(strategy), {1, 2, 3},
                   200);
  }
}

TEST_CASE("modules built without memory get it on their device, one unit after another") {
  same_as_on_cpu(trains_sharded<torch::optim::AdamW, DeferredNet>(torch::optim::AdamWOptions(1e-2)),
                 sharded(ShardingStrategy::full_shard), {1, 2, 3}, 200);
  stand_in::on_devices(2, [](Accelerator& accelerator) {
    if (accelerator.process_index() > 0) return;  // ranks share the generator
    auto module = accelerate::init_empty_weights([&] {
      torch::manual_seed(1);
      return torch::nn::Linear(4, 3);
    });
    module->to(accelerator.device());
    for (const auto& parameter : module->parameters()) {
      CHECK(parameter.device() == accelerator.device());
      CHECK(accelerate::deferred::is_deferred(parameter));
    }
    accelerate::materialize(*module);
    torch::manual_seed(1);
    CHECK(module->weight.cpu().equal(torch::nn::Linear(4, 3)->weight));
  });
}

TEST_CASE("fp16 with loss scaling skips the same steps on every device") {
  for (const auto strategy : {ShardingStrategy::shard_optim_op, ShardingStrategy::full_shard}) {
    CAPTURE(strategy_name(strategy));
    auto options = sharded(strategy);
    options.mixed_precision = accelerate::Precision::fp16;
    options.grad_scaler.init_scale = 1e9;  // the first steps are skipped
    same_as_on_cpu(trains_sharded<torch::optim::SGD, UnnormalizedNet>(torch::optim::SGDOptions(0.1)), options, {2},
                   200);
  }
}

TEST_CASE("a steady step does not wait for the device") {
  for (const auto strategy :
       {ShardingStrategy::shard_optim_op, ShardingStrategy::shard_grad_op, ShardingStrategy::full_shard}) {
    CAPTURE(strategy_name(strategy));
    stand_in::on_devices(
        2,
        [](Accelerator& accelerator) {
          stand_in::SmallNet net;
          torch::optim::AdamW adamw(net->parameters(), 1e-3);
          auto [model, optimizer, loader] = accelerator.prepare(net, adamw, stand_in::small_loader(24, 3));
          const auto rank = static_cast<c10::DeviceIndex>(accelerator.process_index());
          int64_t waits = 0;
          for (auto& [images, labels] : loader) {
            stand_in::backward_on(accelerator, model, optimizer, images, labels);
            optimizer.step();
            if (loader.info().index == 1) waits = stand_in::host_waits(rank);
          }
          CHECK(stand_in::host_waits(rank) == waits);
        },
        sharded(strategy));
  }
}

TEST_CASE("after a load the next forward waits for the values of all ranks") {
  for (const auto strategy :
       {ShardingStrategy::shard_optim_op, ShardingStrategy::shard_grad_op, ShardingStrategy::full_shard}) {
    CAPTURE(strategy_name(strategy));
    const testing::TemporaryFolder folder;
    const auto body = [&](Accelerator& accelerator) -> Tensors {
      stand_in::Job<stand_in::SmallNet, torch::optim::AdamW> job(accelerator, torch::optim::AdamWOptions(1e-2));
      auto& [model, optimizer, loader] = job.prepared;
      const auto path = folder.path / (accelerator.device().is_cpu() ? "cpu" : "device");
      const at::Tensor input = stand_in::small_data(3).first.to(accelerator.device());
      Tensors results;
      for (auto& [images, labels] : loader) {
        stand_in::backward_on(accelerator, model, optimizer, images, labels);
        optimizer.step();
        if (loader.info().index == 1) accelerator.save_state(path, {.durable = false});
      }
      accelerator.load_state(path);
      {
        const torch::NoGradGuard no_grad;
        results.push_back(model(input));
      }
      const auto whole = Accelerator::summon_full_params(model);
      for (const auto& tensor : stand_in::state_of(model)) results.push_back(tensor.cpu().clone());
      return results;
    };
    same_as_on_cpu(body, sharded(strategy), {2}, 200);
  }
}

TEST_CASE("after a step each stream that uses a parameter waits for its values") {
  for (const auto strategy : {ShardingStrategy::shard_optim_op, ShardingStrategy::shard_grad_op}) {
    CAPTURE(strategy_name(strategy));
    same_as_on_cpu(
        [](Accelerator& accelerator) -> Tensors {
          stand_in::Job<stand_in::SmallNet, torch::optim::AdamW> job(accelerator, torch::optim::AdamWOptions(1e-2));
          auto& [model, optimizer, loader] = job.prepared;
          const at::Device device = accelerator.device();
          Tensors found;
          for (auto& [images, labels] : loader) {
            stand_in::backward_on(accelerator, model, optimizer, images, labels);
            optimizer.step();
            const at::Tensor weight = job.net->hidden->weight.detach();
            if (device.is_cpu()) {
              found.push_back(weight.clone());
              found.push_back(weight.clone());
              continue;
            }
            const c10::impl::VirtualGuardImpl guard(device.type());
            const auto main = guard.getStream(device), side = guard.getNewStream(device);
            stand_in::make_wait(side, main);  // before `main` waits for the values
            found.push_back(weight.clone());
            {
              const c10::StreamGuard on_side(side);
              found.push_back(weight.clone());
            }
            stand_in::make_wait(main, side);
            found.back().record_stream(main);
          }
          return stand_in::to_cpu(found);
        },
        sharded(strategy), {2}, 500);
  }
}

TEST_CASE("the stream of a step waits for the parameters, although another stream used them first") {
  same_as_on_cpu(
      [](Accelerator& accelerator) -> Tensors {
        stand_in::Job<stand_in::SmallNet, torch::optim::AdamW> job(accelerator, torch::optim::AdamWOptions(1e-2));
        auto& [model, optimizer, loader] = job.prepared;
        Tensors found;
        const auto keep_values = [&] {
          for (const auto& parameter : job.net->parameters()) found.push_back(parameter.detach().clone());
        };
        for (auto& [images, labels] : loader) {
          stand_in::backward_on(accelerator, model, optimizer, images, labels);
          optimizer.step();
          const at::Device device = accelerator.device();
          if (device.is_cpu()) {
            keep_values();
            keep_values();
            continue;
          }
          const c10::impl::VirtualGuardImpl guard(device.type());
          const auto main = guard.getStream(device), side = guard.getNewStream(device);
          stand_in::make_wait(side, main);
          {
            const c10::StreamGuard on_side(side);
            keep_values();
          }
          keep_values();  // before `main` waits for `side`
          stand_in::make_wait(main, side);
        }
        return stand_in::to_cpu(found);
      },
      sharded(ShardingStrategy::shard_optim_op), {2}, 500);
}

TEST_CASE("after a backward that threw during a reduction, the next step does not disturb it") {
  for (const auto strategy : {ShardingStrategy::shard_grad_op, ShardingStrategy::full_shard}) {
    CAPTURE(strategy_name(strategy));
    same_as_on_cpu(
        [](Accelerator& accelerator) -> Tensors {
          stand_in::Job<ThrowingNet, torch::optim::AdamW> job(accelerator, torch::optim::AdamWOptions(1e-2));
          auto& [model, optimizer, loader] = job.prepared;
          for (auto& [images, labels] : loader) {
            job.net->throws = true;
            CHECK_THROWS_AS(stand_in::backward_on(accelerator, model, optimizer, images, labels), std::runtime_error);
            job.net->throws = false;
            stand_in::backward_on(accelerator, model, optimizer, images, labels);
            optimizer.step();
          }
          const auto whole = Accelerator::summon_full_params(model);
          return stand_in::to_cpu(stand_in::state_of(model));
        },
        sharded(strategy), {2}, 500);
  }
}
