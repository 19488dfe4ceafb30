// SPDX-License-Identifier: Apache-2.0
// Features that a loop may use besides backward and step, on the device as on the CPU.
#include "tests/stand_in/ranks.hpp"

using accelerate::Accelerator;
using stand_in::made_equal;
using stand_in::same_as_on_cpu;
using stand_in::small_loader;
using stand_in::SmallNet;
using stand_in::state_of;
using stand_in::Tensors;
using stand_in::with_small_buckets;

TEST_CASE("gradients are clipped by norm and by value on the device as on the CPU") {
  same_as_on_cpu(
      [](Accelerator& accelerator) -> Tensors {
        stand_in::Job<> job(accelerator, stand_in::kMomentum);
        auto& [model, optimizer, loader] = job.prepared;
        Tensors norms;
        for (auto& [images, labels] : loader) {
          stand_in::backward_on(accelerator, model, optimizer, images, labels);
          norms.push_back(accelerator.clip_grad_norm_(model.parameters(), 0.1));
          accelerator.clip_grad_value_(model.parameters(), 0.01);
          optimizer.step();
        }
        auto all = state_of(model);
        all.push_back(torch::stack(norms));
        return all;
      },
      with_small_buckets());
}

TEST_CASE("accumulation windows, the short last one too, produce the CPU's bits") {
  auto options = with_small_buckets();
  options.gradient_accumulation_steps = 3;
  same_as_on_cpu(
      [](Accelerator& accelerator) -> Tensors {
        stand_in::Job<> job(accelerator, stand_in::kMomentum, 30, 3);
        auto& [model, optimizer, loader] = job.prepared;
        for (auto& [images, labels] : loader) {
          auto window = accelerator.accumulate(model);
          accelerator.backward(torch::nll_loss(model(images), labels));
          optimizer.step();
          optimizer.zero_grad();
        }
        return state_of(model);
      },
      options);
}

TEST_CASE("no_sync keeps gradients local until the synchronised backward that reduces all of them") {
  same_as_on_cpu(
      [](Accelerator& accelerator) -> Tensors {
        stand_in::Job<> job(accelerator, stand_in::kMomentum);
        auto& [model, optimizer, loader] = job.prepared;
        int64_t step = 0;
        for (auto& [images, labels] : loader) {
          if (step++ % 2 == 0) {
            const auto local = accelerator.no_sync(model);
            accelerator.backward(torch::nll_loss(model(images), labels));
            continue;
          }
          accelerator.backward(torch::nll_loss(model(images), labels));
          optimizer.step();
          optimizer.zero_grad();
        }
        return state_of(model);
      },
      with_small_buckets());
}

TEST_CASE("local SGD averages the parameters on the device") {
  same_as_on_cpu([](Accelerator& accelerator) -> Tensors {
    stand_in::Job<> job(accelerator, stand_in::kMomentum);
    auto& [model, optimizer, loader] = job.prepared;
    auto local = accelerator.local_sgd(model, 2);
    for (auto& [images, labels] : loader) {
      stand_in::backward_on(accelerator, model, optimizer, images, labels);
      optimizer.step();
      local.step();
    }
    local.finish();
    return state_of(model);
  });
}

TEST_CASE("ranks that run out of batches join the others on the device") {
  auto options = with_small_buckets();
  options.even_batches = false;
  same_as_on_cpu(
      [](Accelerator& accelerator) -> Tensors {
        stand_in::Job<> job(accelerator, stand_in::kMomentum, 15, 3);  // 5 batches: one rank of two has one more
        auto& [model, optimizer, loader] = job.prepared;
        {
          auto join = accelerator.join_uneven_inputs();
          for (auto& [images, labels] : loader) {
            stand_in::backward_on(accelerator, model, optimizer, images, labels);
            optimizer.step();
          }
          join.finish();
        }
        return state_of(model);
      },
      options);
}

TEST_CASE("gather_for_metrics returns every sample once, from the device") {
  same_as_on_cpu([](Accelerator& accelerator) -> Tensors {
    stand_in::Job<> job(accelerator, stand_in::kMomentum, 10, 3);
    auto& [model, optimizer, loader] = job.prepared;
    model.eval();
    const torch::NoGradGuard no_grad;
    Tensors labels_seen;
    for (auto& [images, labels] : loader) {
      const auto [outputs, all_labels] = accelerator.gather_for_metrics(std::pair(model(images), labels));
      CHECK(outputs.device() == accelerator.device());
      labels_seen.push_back(all_labels);
      labels_seen.push_back(outputs);
    }
    return labels_seen;
  });
}

TEST_CASE("reduce, broadcast and pad_across_processes work on the device") {
  using Call = std::function<torch::Tensor(Accelerator&, const torch::Tensor&)>;
  const std::vector<Call> calls{
      [](auto& accelerator, const auto& x) { return accelerator.reduce(x); },
      [](auto& accelerator, const auto& x) { return accelerator.reduce(x, accelerate::comm::ReduceOp::mean); },
      [](auto& accelerator, const auto& x) { return accelerator.reduce(x, accelerate::comm::ReduceOp::sum, 0.5); },
      [](auto& accelerator, const auto& x) {
        return accelerator.broadcast(x.clone(), accelerator.num_processes() - 1);
      },
      [](auto& accelerator, const auto& x) {
        return accelerator.pad_across_processes(x.narrow(0, 0, 3 - accelerator.process_index()));
      },
      [](auto& accelerator, const auto& x) { return accelerator.gather(x); }};
  // each separately: waiting for a later one implies waiting for all earlier ones
  for (size_t i = 0; i < calls.size(); ++i) {
    CAPTURE(i);
    same_as_on_cpu([&](Accelerator& accelerator) -> Tensors {
      const auto options = at::TensorOptions(accelerator.device()).dtype(at::kFloat);
      return {calls[i](accelerator, torch::arange(4, options) + accelerator.process_index())};
    });
  }
}

TEST_CASE("a tensor on one rank's CPU is copied to the devices of all ranks") {
  same_as_on_cpu([](Accelerator& accelerator) -> Tensors {
    const bool mine = accelerator.process_index() == 0;
    const auto copy = accelerate::tree::copy_tensor_to_devices(mine ? torch::arange(4) : torch::Tensor(),
                                                               accelerator.group(), 0, accelerator.device());
    CHECK(copy.device() == (mine ? at::Device(at::kCPU) : accelerator.device()));
    return {copy};
  });
}

TEST_CASE("communication hooks have the CPU's results on the device: 16 bits, low rank, a function") {
  using namespace accelerate::gradient;  // NOLINT
  const auto sum = comm_hook([](const GradientBucket& bucket, const accelerate::comm::Group& group) {
    group.all_reduce(bucket.gradients);
    return bucket.gradients;
  });
  const PowerSgdOptions from_step_2{.start_step = 2};
  for (const auto& hook :
       {fp16_compress_hook(), sum, power_sgd_hook(from_step_2), batched_power_sgd_hook(from_step_2)}) {
    auto options = with_small_buckets();
    options.comm_hook = hook;
    same_as_on_cpu(stand_in::trains_with<torch::optim::SGD>(stand_in::kMomentum), options, {2}, 200);
  }
}
