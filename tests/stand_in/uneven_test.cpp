// SPDX-License-Identifier: Apache-2.0
// Ranks with different work and models that change, on the device as on the CPU.
#include "tests/stand_in/ranks.hpp"

using accelerate::Accelerator;
using stand_in::made_equal;
using stand_in::same_as_on_cpu;
using stand_in::small_loader;
using stand_in::Tensors;
using stand_in::with_small_buckets;

namespace {

/// Each forward uses one of its three heads.
struct HeadsImpl : torch::nn::Module {
  HeadsImpl() {
    trunk = register_module("trunk", torch::nn::Linear(36, 8));
    for (const char* name : {"first", "second", "third"})
      heads.push_back(register_module(name, torch::nn::Linear(8, 5)));
  }
  at::Tensor forward(const at::Tensor& images, int64_t head) {
    const auto x = torch::tanh(trunk(images.flatten(1)));
    return torch::log_softmax(heads[static_cast<size_t>(head)](x), 1);
  }
  torch::nn::Linear trunk{nullptr};
  std::vector<torch::nn::Linear> heads;
};
TORCH_MODULE(Heads);

int64_t waits_so_far(const Accelerator& accelerator) {
  return accelerator.device().is_cpu() ? 0 : stand_in::host_waits(accelerator.device().index());
}

/// Some ranks use the first head, others the second; no rank uses the third.
Tensors leaves_heads_out(Accelerator& accelerator) {
  stand_in::Job<Heads> job(accelerator, stand_in::kMomentum);
  auto& [model, optimizer, loader] = job.prepared;
  int64_t step = 0;
  for (auto& [images, labels] : loader) {
    optimizer.zero_grad();
    const int64_t head = step++ == 0 ? 0 : (step + accelerator.process_index()) % 2;
    const auto before = waits_so_far(accelerator);
    accelerator.backward(torch::nll_loss(model(images, head), labels));
    if (step > 1 && !accelerator.device().is_cpu() && accelerator.num_processes() > 1) {
      CHECK(waits_so_far(accelerator) == before + 1);  // reads the usage counts
    }
    CHECK_FALSE(model->heads[2]->weight.grad().defined());
    optimizer.step();
  }
  return stand_in::state_of(model);
}

}  // namespace

TEST_CASE("a head that some ranks omit counts as zero there, one that all omit has no gradient") {
  same_as_on_cpu(leaves_heads_out, with_small_buckets());
}

TEST_CASE("unused parameters work with a communication hook's function") {
  auto options = with_small_buckets();
  options.comm_hook = accelerate::gradient::comm_hook([](const auto& bucket, const auto& group) {
    group.all_reduce(bucket.gradients);
    return bucket.gradients;
  });
  same_as_on_cpu(leaves_heads_out, options, {2});
}

TEST_CASE("a rank that omits a model joins its reduction, in windows too") {
  for (const int64_t window : {1, 2}) {
    auto options = with_small_buckets();
    options.gradient_accumulation_steps = window;
    same_as_on_cpu(
        [](Accelerator& accelerator) -> Tensors {
          auto [trunk, one, other] = made_equal(
              [] { return std::tuple(torch::nn::Linear(36, 8), torch::nn::Linear(8, 5), torch::nn::Linear(8, 5)); });
          Tensors parameters;
          for (const auto& net : {trunk, one, other}) {
            for (const auto& parameter : net->parameters()) parameters.push_back(parameter);
          }
          torch::optim::SGD sgd(parameters, stand_in::kMomentum);
          auto data = small_loader(24, 3);
          auto [base, head, sometimes, optimizer, loader] = accelerator.prepare(trunk, one, other, sgd, data);
          int64_t step = 0;
          for (auto& [images, labels] : loader) {
            auto within = accelerator.accumulate();
            const auto x = torch::tanh(base(images.flatten(1)));
            auto logits = head(x);
            if ((step++ + accelerator.process_index()) % 3 == 0) logits = logits + sometimes(x);
            accelerator.backward(torch::nll_loss(torch::log_softmax(logits, 1), labels));
            optimizer.step();
            optimizer.zero_grad();
          }
          return stand_in::to_cpu(parameters);
        },
        options);
  }
}

TEST_CASE("a static graph's unused parameters need no wait of the host, for any batch sizes") {
  auto options = with_small_buckets();
  options.static_graph = true;
  same_as_on_cpu(
      [](Accelerator& accelerator) -> Tensors {
        stand_in::Job<Heads> job(accelerator, stand_in::kMomentum);
        auto& [model, optimizer, loader] = job.prepared;
        int64_t step = 0;
        int64_t waits = 0;
        for (auto& [images, labels] : loader) {
          if (step++ == 2) waits = waits_so_far(accelerator);
          const int64_t rows = 1 + step % 3;
          optimizer.zero_grad();
          accelerator.backward(torch::nll_loss(model(images.narrow(0, 0, rows), 0), labels.narrow(0, 0, rows)));
          optimizer.step();
        }
        CHECK(waits_so_far(accelerator) == waits);
        return stand_in::state_of(model);
      },
      options);
}

TEST_CASE("a model that changes its dtype is averaged in the new one, with its accumulated gradients") {
  same_as_on_cpu(
      [](Accelerator& accelerator) -> Tensors {
        stand_in::Job<> job(accelerator, torch::optim::SGDOptions(0.1));
        auto& [model, optimizer, loader] = job.prepared;
        int64_t step = 0;
        for (auto& [images, labels] : loader) {
          const auto backward = [&, &model = model, &x = images, &y = labels] {
            accelerator.backward(torch::nll_loss(model(x.to(model.parameters().front().scalar_type())), y));
          };
          if (step++ == 3) {
            const auto local = accelerator.no_sync(model);
            backward();
            model->to(at::kDouble);
            continue;
          }
          backward();
          optimizer.step();
          optimizer.zero_grad();
        }
        for (const auto& parameter : model.parameters()) CHECK((parameter.scalar_type() == at::kDouble));
        return stand_in::state_of(model);
      },
      with_small_buckets());
}
