// SPDX-License-Identifier: Apache-2.0
// cpu_offload of sharded training: the numbers without it, no race, one wait of the host in a step, and no memory of
// the device between steps.
#include "tests/stand_in/ranks.hpp"
#include "tests/temporary_folder.hpp"

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using accelerate::ShardingStrategy;
using stand_in::same_as_on_cpu;
using stand_in::Tensors;

// Test files are compiled together, and others have helpers of the same names.
namespace sharding_offload_testing {
namespace {

/// Units of at least 20 elements. On the CPU, with which the numbers are compared, cpu_offload has no effect.
AcceleratorOptions offloaded(ShardingStrategy strategy = ShardingStrategy::full_shard) {
  return {.fsdp_plugin = {.sharding_strategy = strategy, .min_num_params = 20, .cpu_offload = true}};
}

/// Has no buffers, and only operators that autocast treats in the same way on every device.
struct ThreeLayersImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& images) {
    return last(torch::relu(hidden(torch::relu(first(images.flatten(1))))));
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(36, 24));
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(24, 16));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(16, 5));
};
TORCH_MODULE(ThreeLayers);

struct DeferredThreeLayers : ThreeLayers {
  DeferredThreeLayers() : ThreeLayers(accelerate::init_empty_weights([] { return ThreeLayers(); })) {}
};

struct DeepImpl : torch::nn::Module {
  DeepImpl(int64_t width, int64_t depth) {
    for (int64_t i = 0; i < depth; ++i) {
      layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false)));
    }
  }
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers = register_module("layers", torch::nn::Sequential());
};
TORCH_MODULE(Deep);

template <typename Model>
Tensors whole_state(const Model& model) {
  const auto whole = Accelerator::summon_full_params(model);
  Tensors copies;
  for (const auto& tensor : stand_in::state_of(model)) copies.push_back(tensor.cpu().clone());
  return copies;
}

/// `in_a_step` is called for every batch, after the gradients were zeroed.
template <typename Net = stand_in::SmallNet, typename Optimizer = torch::optim::AdamW, typename Step,
          typename Options = torch::optim::AdamWOptions>
auto trains(const Step& in_a_step, const Options& optimizer_options = Options(1e-2)) {
  return [=](Accelerator& accelerator) -> Tensors {
    stand_in::Job<Net, Optimizer> job(accelerator, optimizer_options);
    auto& [model, optimizer, loader] = job.prepared;
    Tensors results;
    for (auto& [images, labels] : loader) {
      in_a_step(accelerator, model, optimizer, images, labels, results);
    }
    for (const auto& tensor : whole_state(model)) results.push_back(tensor);
    return results;
  };
}

const auto plain_step = [](Accelerator& accelerator, auto& model, auto& optimizer, const at::Tensor& images,
                           const at::Tensor& labels, Tensors& results) {
  optimizer.zero_grad();
  const auto loss = stand_in::loss_of(model(images), labels);
  accelerator.backward(loss);
  optimizer.step();
  results.push_back(loss.detach());
};

const auto clipped_step = [](Accelerator& accelerator, auto& model, auto& optimizer, const at::Tensor& images,
                             const at::Tensor& labels, Tensors& results) {
  optimizer.zero_grad();
  accelerator.backward(stand_in::loss_of(model(images), labels));
  results.push_back(accelerator.clip_grad_norm_(model, 0.5).cpu());
  optimizer.step();
};

int64_t used_memory(c10::DeviceIndex device) {
  at::accelerator::synchronizeDevice(device);
  return at::accelerator::getDeviceStats(device).allocated_bytes[0].current;
}

}  // namespace

TEST_CASE("cpu_offload has the CPU's numbers on 1 to 3 devices without a race") {
  same_as_on_cpu(trains(clipped_step), offloaded(), {1, 2, 3}, 200);
}

TEST_CASE("cpu_offload of a job with one rank, which has no connection, waits for its uploads") {
  const auto run = [](const std::string& device) {
    auto options = offloaded();
    options.device = device;
    const stand_in::DefaultDtype dtype(options);
    Accelerator accelerator(options);
    return stand_in::to_cpu(trains<ThreeLayers>(clipped_step)(accelerator));
  };
  const Tensors expected = run("cpu");
  stand_in::at_every_pace(
      [&] {
        const Tensors found = run(stand_in::device_name());
        REQUIRE(found.size() == expected.size());
        for (size_t i = 0; i < expected.size(); ++i) stand_in::check_same(found[i], expected[i]);
      },
      200);
}

// The kernels of the other optimizers round differently on the CPU.
TEST_CASE("cpu_offload has the numbers of full_shard without it" * stand_in::needs_stand_in()) {
  const auto check = [](const auto& body) {
    auto options = offloaded();
    options.device = stand_in::device_name();
    const auto found = stand_in::results(2, body, options);
    options.fsdp_plugin.cpu_offload = false;
    const auto expected = stand_in::results(2, body, options);
    for (size_t rank = 0; rank < 2; ++rank) {
      REQUIRE(found[rank].size() == expected[rank].size());
      for (size_t i = 0; i < expected[rank].size(); ++i) stand_in::check_same(found[rank][i], expected[rank][i]);
    }
  };
  using namespace torch::optim;
  using Net = ThreeLayers;
  check(trains<Net, AdamW>(clipped_step, AdamWOptions(1e-2)));
  check(trains<Net, Adam>(clipped_step, AdamOptions(1e-2).amsgrad(true)));
  check(trains<Net, SGD>(clipped_step, SGDOptions(0.1).momentum(0.9)));
}

TEST_CASE("cpu_offload has the CPU's numbers for other optimizers") {
  using namespace torch::optim;
  same_as_on_cpu(trains<ThreeLayers, Adagrad>(clipped_step, AdagradOptions(1e-2)), offloaded(), {2}, 200);
  same_as_on_cpu(trains<ThreeLayers, RMSprop>(clipped_step, RMSpropOptions(1e-2).momentum(0.9)), offloaded(), {2}, 200);
}

TEST_CASE("cpu_offload of replicas, without prefetch, and of units that stay whole until the backward") {
  auto options = offloaded(ShardingStrategy::hybrid_shard);
  options.fsdp_plugin.dp_shard_size = 1;
  same_as_on_cpu(trains(clipped_step), options, {2}, 200);
  options.fsdp_plugin.dp_shard_size = 2;
  same_as_on_cpu(trains(clipped_step), options, {4}, 200);
  options = offloaded();
  options.fsdp_plugin.forward_prefetch = false;
  options.fsdp_plugin.reshard_after_forward = false;
  same_as_on_cpu(trains(clipped_step), options, {2}, 200);
}

TEST_CASE("cpu_offload of modules built without memory") {
  same_as_on_cpu(trains<DeferredThreeLayers>(clipped_step), offloaded(), {1, 2}, 200);
}

TEST_CASE("cpu_offload adds up the gradients of an accumulation window, and those of no_sync") {
  auto options = offloaded();
  options.gradient_accumulation_steps = 2;
  const auto step = [](Accelerator& accelerator, auto& model, auto& optimizer, const at::Tensor& images,
                       const at::Tensor& labels, Tensors& results) {
    const auto window = accelerator.accumulate(model);
    optimizer.zero_grad();
    accelerator.backward(stand_in::loss_of(model(images), labels));
    {
      const auto no_sync = accelerator.no_sync(model);
      accelerator.backward(stand_in::loss_of(model(images * 0.5), labels));
    }
    accelerator.backward(stand_in::loss_of(model(images * 2), labels));
    results.push_back(accelerator.clip_grad_norm_(model, 0.5).cpu());
    optimizer.step();
  };
  same_as_on_cpu(trains<ThreeLayers>(step), options, {1, 2}, 200);
}

TEST_CASE("cpu_offload scales the gradients of a short last window") {
  auto options = offloaded();
  options.gradient_accumulation_steps = 3;
  const auto body = [](Accelerator& accelerator) -> Tensors {
    stand_in::Job<ThreeLayers, torch::optim::AdamW> job(accelerator, torch::optim::AdamWOptions(1e-2), 30);
    auto& [model, optimizer, loader] = job.prepared;
    for (auto& [images, labels] : loader) {  // five on each rank
      const auto window = accelerator.accumulate(model);
      optimizer.zero_grad();
      accelerator.backward(stand_in::loss_of(model(images), labels));
      optimizer.step();
    }
    return whole_state(model);
  };
  same_as_on_cpu(body, options, {2}, 1000);
}

TEST_CASE("cpu_offload skips the same steps of fp16, and averages the others") {
  auto options = offloaded();
  options.mixed_precision = accelerate::Precision::fp16;
  options.grad_scaler.init_scale = 1e9;  // the first steps are skipped
  const auto body = [](Accelerator& accelerator) -> Tensors {
    stand_in::Job<ThreeLayers, torch::optim::SGD> job(accelerator, torch::optim::SGDOptions(0.1));
    auto& [model, optimizer, loader] = job.prepared;
    accelerate::optim::ExponentialMovingAverage average(model, {.decay = 0.5});
    for (auto& [images, labels] : loader) {
      stand_in::backward_on(accelerator, model, optimizer, images, labels);
      optimizer.step();
      average.update(optimizer.skip_flag());
    }
    Tensors results{at::scalar_tensor(average.updates())};
    for (const auto& tensor : average.averages()) results.push_back(tensor.cpu());
    for (const auto& tensor : whole_state(model)) results.push_back(tensor);
    return results;
  };
  same_as_on_cpu(body, options, {2}, 200);
}

TEST_CASE("cpu_offload keeps float32 masters of bfloat16 parameters on the host") {
  auto options = offloaded();
  options.precision_policy = accelerate::precision::pure_bf16();
  const auto step = [](Accelerator& accelerator, auto& model, auto& optimizer, const at::Tensor& images,
                       const at::Tensor& labels, Tensors& results) {
    plain_step(accelerator, model, optimizer, images.to(at::kBFloat16), labels, results);
  };
  same_as_on_cpu(trains<ThreeLayers>(step), options, {2}, 200);
}

TEST_CASE("a forward that is still running when the host steps has the old values") {
  const auto step = [](Accelerator& accelerator, auto& model, auto& optimizer, const at::Tensor& images,
                       const at::Tensor& labels, Tensors& results) {
    optimizer.zero_grad();
    accelerator.backward(stand_in::loss_of(model(images), labels));
    {
      const torch::NoGradGuard no_grad;
      results.push_back(model(images).clone());
    }
    optimizer.step();
  };
  same_as_on_cpu(trains<ThreeLayers>(step), offloaded(), {1, 2}, 2000);
}

TEST_CASE("averages that are swapped out while the device evaluates with them") {
  const auto body = [](Accelerator& accelerator) -> Tensors {
    stand_in::Job<ThreeLayers, torch::optim::AdamW> job(accelerator, torch::optim::AdamWOptions(1e-2));
    auto& [model, optimizer, loader] = job.prepared;
    accelerate::optim::ExponentialMovingAverage average(model, {.decay = 0.5});
    Tensors results;
    for (auto& [images, labels] : loader) {
      stand_in::backward_on(accelerator, model, optimizer, images, labels);
      optimizer.step();
      average.update();
      const auto averaged = average.average_parameters();
      const torch::NoGradGuard no_grad;
      results.push_back(model(images).clone());
    }
    for (const auto& tensor : whole_state(model)) results.push_back(tensor);
    return results;
  };
  same_as_on_cpu(body, offloaded(), {2}, 2000);
}

TEST_CASE("gradients that are zeroed or dropped while they are copied do not return") {
  for (const bool set_to_none : {true, false}) {
    CAPTURE(set_to_none);
    const auto step = [=](Accelerator& accelerator, auto& model, auto& optimizer, const at::Tensor& images,
                          const at::Tensor& labels, Tensors& results) {
      accelerator.backward(stand_in::loss_of(model(images * 3), labels));
      optimizer.zero_grad(set_to_none);
      accelerator.backward(stand_in::loss_of(model(images), labels));
      results.push_back(accelerator.clip_grad_norm_(model, 0.5).cpu());
      optimizer.step();
      optimizer.zero_grad(set_to_none);
    };
    same_as_on_cpu(trains<ThreeLayers>(step), offloaded(), {2}, 1000);
  }
}

TEST_CASE("operators that write to offloaded parameters, and scopes with whole parameters, change the parts") {
  const auto step = [](Accelerator& accelerator, auto& model, auto& optimizer, const at::Tensor& images,
                       const at::Tensor& labels, Tensors& results) {
    plain_step(accelerator, model, optimizer, images, labels, results);
    const auto whole = Accelerator::summon_full_params(model);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.clamp_(-0.1, 0.1);
  };
  same_as_on_cpu(trains<ThreeLayers>(step), offloaded(), {2}, 200);
}

TEST_CASE("a forward without a backward and an exception in a backward do not change the next step of cpu_offload") {
  const auto step = [](Accelerator& accelerator, auto& model, auto& optimizer, const at::Tensor& images,
                       const at::Tensor& labels, Tensors& results) {
    static_cast<void>(model(images));
    const auto output = model(images);
    output.register_hook([](const at::Tensor& gradient) -> at::Tensor {
      if (gradient.defined()) throw std::runtime_error("on purpose");
      return gradient;
    });
    CHECK_THROWS_AS(accelerator.backward(stand_in::loss_of(output, labels)), std::runtime_error);
    plain_step(accelerator, model, optimizer, images, labels, results);
  };
  same_as_on_cpu(trains<ThreeLayers>(step), offloaded(), {2}, 200);
}

TEST_CASE("a checkpoint of cpu_offload continues without it, and the other way") {
  for (const bool saves_offloaded : {true, false}) {
    CAPTURE(saves_offloaded);
    const testing::TemporaryFolder folder;
    const auto body = [&](Accelerator& accelerator) -> Tensors {
      stand_in::Job<ThreeLayers, torch::optim::AdamW> job(accelerator, torch::optim::AdamWOptions(1e-2));
      auto& [model, optimizer, loader] = job.prepared;
      AcceleratorOptions options = offloaded();
      options.device = accelerator.device().is_cpu() ? "cpu" : stand_in::device_name();
      options.fsdp_plugin.cpu_offload = !saves_offloaded;
      Accelerator second(accelerator.group(), options);
      stand_in::Job<ThreeLayers, torch::optim::AdamW> other(second, torch::optim::AdamWOptions(1e-2));
      auto& [loaded, loaded_optimizer, other_loader] = other.prepared;
      Tensors results;
      for (auto& [images, labels] : loader) plain_step(accelerator, model, optimizer, images, labels, results);
      const auto path = folder.path / (accelerator.device().is_cpu() ? "cpu" : "device");
      accelerator.save_state(path, {.async = saves_offloaded, .durable = false});
      accelerator.wait_for_checkpoint();
      second.load_state(path);
      for (auto& [images, labels] : other_loader) plain_step(second, loaded, loaded_optimizer, images, labels, results);
      for (const auto& tensor : whole_state(loaded)) results.push_back(tensor);
      for (const auto& entry : second.get_state_dict(loaded)) results.push_back(entry.value().cpu());
      accelerator.wait_for_everyone();
      return results;
    };
    auto options = offloaded();
    options.fsdp_plugin.cpu_offload = saves_offloaded;
    same_as_on_cpu(body, options, {2}, 0);
  }
}

TEST_CASE("an Accelerator that ends while the device reads its parts keeps them until then") {
  same_as_on_cpu(
      [](Accelerator& accelerator) -> Tensors {
        const auto images = stand_in::small_data(6).first.to(accelerator.device());
        auto options = offloaded();
        options.device = accelerator.device().is_cpu() ? "cpu" : stand_in::device_name();
        auto second = std::make_unique<Accelerator>(accelerator.group(), options);
        Tensors results;
        {
          auto net = stand_in::made_equal([] { return ThreeLayers(); });
          auto model = second->prepare(net);
          const torch::NoGradGuard no_grad;
          results.push_back(model(images).clone());
        }
        second.reset();
        return results;
      },
      {}, {2}, 2000);
}

TEST_CASE("the host waits once in a steady step of cpu_offload") {
  stand_in::on_devices(
      2,
      [](Accelerator& accelerator) {
        stand_in::Job<stand_in::SmallNet, torch::optim::AdamW> job(accelerator, torch::optim::AdamWOptions(1e-3));
        auto& [model, optimizer, loader] = job.prepared;
        const auto device = accelerator.device().index();
        for (auto& [images, labels] : loader) {
          const bool is_steady = loader.info().index > 1;
          const auto before = stand_in::host_waits(device);
          stand_in::backward_on(accelerator, model, optimizer, images, labels);
          if (is_steady) CHECK(stand_in::host_waits(device) == before);
          optimizer.step();
          if (is_steady) CHECK(stand_in::host_waits(device) == before + 1);
        }
      },
      offloaded());
}

TEST_CASE("the host does not wait in the micro-batches before a step of cpu_offload") {
  auto options = offloaded();
  options.gradient_accumulation_steps = 4;
  stand_in::on_devices(
      2,
      [](Accelerator& accelerator) {
        stand_in::Job<ThreeLayers, torch::optim::AdamW> job(accelerator, torch::optim::AdamWOptions(1e-3), 48);
        auto& [model, optimizer, loader] = job.prepared;
        const auto device = accelerator.device().index();
        int64_t waits = 0;
        for (auto& [images, labels] : loader) {
          const auto window = accelerator.accumulate(model);
          optimizer.zero_grad();
          accelerator.backward(stand_in::loss_of(model(images), labels));
          optimizer.step();
          if (loader.info().index == 3) waits = stand_in::host_waits(device);
          if (loader.info().index > 3) {
            CHECK(stand_in::host_waits(device) == waits + (accelerator.sync_gradients() ? 1 : 0));
          }
        }
      },
      options);
}

TEST_CASE("between steps of cpu_offload the device has no memory of parameters, gradients and states" *
          stand_in::needs_stand_in()) {
  constexpr int64_t kWidth = 64, kLayers = 6;
  auto options = offloaded();
  options.fsdp_plugin.min_num_params = kWidth * kWidth;
  for (const int64_t ranks : {1, 2}) {
    CAPTURE(ranks);
    stand_in::on_devices(
        ranks,
        [&](Accelerator& accelerator) {
          const auto device = accelerator.device().index();
          const auto x = torch::ones({1, kWidth}, accelerator.device());
          const int64_t before = used_memory(device);
          Deep net(kWidth, kLayers);
          torch::optim::AdamW adamw(net->parameters(), 1e-3);
          auto [model, optimizer] = accelerator.prepare(net, adamw);
          CHECK(used_memory(device) == before);
          for (int64_t i = 0; i < 3; ++i) {
            accelerator.backward(model(x).mean());
            optimizer.step();
            optimizer.zero_grad();
            CHECK(used_memory(device) == before);
          }
          for (const auto& [key, state] : adamw.state()) {
            CHECK(static_cast<torch::optim::AdamWParamState&>(*state).exp_avg().is_cpu());
          }
          for (const auto& shard : model.parameter_shards())
            CHECK((shard.value.numel() == 0 || shard.value.is_pinned()));
        },
        options);
  }
}

TEST_CASE("an out-of-memory report of cpu_offload does not count the memory of the host") {
  stand_in::on_devices(
      2,
      [](Accelerator& accelerator) {
        stand_in::Job<stand_in::SmallNet, torch::optim::AdamW> job(accelerator, torch::optim::AdamWOptions(1e-3));
        auto& [model, optimizer, loader] = job.prepared;
        for (auto& [images, labels] : loader) stand_in::backward_on(accelerator, model, optimizer, images, labels);
        optimizer.step();
        for (const auto& entry : model.core().memory_inventory()) CHECK(entry.kind == "buffers");
        CHECK_FALSE(model.core().memory_inventory().empty());
      },
      offloaded());
}

TEST_CASE("the state of an optimizer that stepped before prepare() is moved to the host") {
  const auto body = [](Accelerator& accelerator) -> Tensors {
    auto net = stand_in::made_equal([] { return ThreeLayers(); });
    net->to(accelerator.device());
    torch::optim::AdamW adamw(net->parameters(), 1e-2);
    const auto images = torch::ones({3, 36}, accelerator.device());
    net->forward(images).sum().backward();
    adamw.step();
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    optimizer.zero_grad();
    accelerator.backward(model(images).sum());
    optimizer.step();
    for (const auto& [key, state] : adamw.state()) {
      CHECK(static_cast<torch::optim::AdamWParamState&>(*state).exp_avg().is_cpu());
    }
    return whole_state(model);
  };
  same_as_on_cpu(body, offloaded(), {2}, 200);
}

}  // namespace sharding_offload_testing
