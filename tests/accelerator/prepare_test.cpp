// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <torch/script.h>

#include <array>
#include <cstddef>

#include "tests/accelerator/ranks.hpp"

using accelerate::Accelerator;
using accelerate::prepared::AnyLoader;
using accelerate::prepared::AnyModule;
using accelerate::prepared::AnyOptimizer;
using accelerate::prepared::AnyScheduler;

namespace {
torch::Tensor ones() { return torch::ones({1}, torch::kDouble); }
}  // namespace

TEST_CASE("prepare() returns results in the order of the arguments, or a single one") {
  Accelerator accelerator({.cpu = true});
  OneWeight net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [loader, optimizer, model] = accelerator.prepare(counting(4, 2), sgd, net);
  CHECK(loader.size() == 2);
  CHECK(&*optimizer == &sgd);
  CHECK(&*model == net.get());
  auto alone = accelerator.prepare(net);
  CHECK(alone == model);
}

TEST_CASE("preparing an object twice returns the same handle") {
  Accelerator accelerator({.cpu = true});
  OneWeight net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, counting(4, 2));
  auto [model2, optimizer2, loader2] = accelerator.prepare(model, optimizer, loader);
  CHECK(model == model2);
  CHECK(optimizer == optimizer2);
  CHECK(loader == loader2);
  CHECK(accelerator.prepare(sgd) == optimizer);
  CHECK(accelerator.prepare_model(model) == model);
  CHECK(accelerator.prepare_optimizer(optimizer) == optimizer);
  CHECK(accelerator.prepare_data_loader(loader) == loader);
  torch::optim::StepLR halving(sgd, 2, 0.5);
  auto scheduler = accelerator.prepare(halving);
  CHECK(accelerator.prepare(halving) == scheduler);
  CHECK(accelerator.prepare_scheduler(scheduler) == scheduler);
}

TEST_CASE("a parameter group that is added after prepare() steps on the mean as well") {
  on_ranks(2, [](Accelerator& accelerator) {
    OneWeight first, second;
    torch::optim::SGD sgd(first->parameters(), 1.0);
    auto [one, two, optimizer] = accelerator.prepare(first, second, sgd);
    const auto x = ones() * static_cast<double>(accelerator.process_index());
    accelerator.backward(one(x).sum());
    optimizer.step();
    optimizer.zero_grad();
    sgd.add_param_group(torch::optim::OptimizerParamGroup(second->parameters()));
    accelerator.backward(one(x).sum() + two(x).sum());
    optimizer.step();
    CHECK(first->w.item<double>() == -1.0);
    CHECK(second->w.item<double>() == -0.5);
  });
}

TEST_CASE("a communication hook reduces the gradients of every prepared model") {
  accelerate::simulate(2, [] {
    int64_t calls = 0;
    Accelerator accelerator(
        {.comm_hook = accelerate::gradient::comm_hook([&](const auto& bucket, const accelerate::comm::Group& group) {
           ++calls;
           group.all_reduce(bucket.gradients);
           return bucket.gradients * 10;
         })});
    OneWeight net, other;
    auto [model, second] = accelerator.prepare(net, other);
    accelerator.backward((model(ones()) + second(ones())).sum() * static_cast<double>(1 + accelerator.process_index()));
    CHECK(net->w.grad().item<double>() == 15);
    CHECK(other->w.grad().item<double>() == 15);
    CHECK(calls == 2);
  });
}

TEST_CASE("a moved Accelerator continues with its prepared objects") {
  on_ranks(2, [](Accelerator& accelerator) {
    Accelerator first({.cpu = true});
    OneWeight net;
    auto [model, optimizer] = first.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
    Accelerator second(std::move(first));
    second.backward(model(ones() * static_cast<double>(accelerator.process_index())).sum());
    optimizer.step();
    CHECK(net->w.item<double>() == -0.5);
    CHECK(second.prepare(net) == model);
  });
}

TEST_CASE("lvalues are referenced, rvalues owned, pointers shared") {
  Accelerator accelerator({.cpu = true});
  OneWeightImpl module(2.0);
  auto referenced = accelerator.prepare(module);
  CHECK(&*referenced == &module);
  auto owned = accelerator.prepare(OneWeightImpl(3.0));
  CHECK(owned(ones()).item<double>() == 3.0);
  const auto pointer = std::make_shared<OneWeightImpl>(4.0);
  auto shared = accelerator.prepare(pointer);
  CHECK(&*shared == pointer.get());
  auto optimizer = accelerator.prepare(std::make_unique<torch::optim::SGD>(pointer->parameters(), 1.0));
  shared(ones()).sum().backward();
  optimizer.step();
  CHECK(pointer->w.item<double>() == 3.0);
}

TEST_CASE("an owned optimizer lives until free_memory(), also without a handle") {
  struct Watched : torch::optim::SGD {
    Watched(const OneWeight& net, std::shared_ptr<int> life) : SGD(net->parameters(), 1.0), alive(std::move(life)) {}
    std::shared_ptr<int> alive;
  };
  Accelerator accelerator({.cpu = true, .gradient_accumulation_steps = 2});
  OneWeight net;
  const auto life = std::make_shared<int>();
  { auto optimizer = accelerator.prepare(std::make_unique<Watched>(net, life)); }
  {
    torch::optim::SGD local(net->parameters(), 1.0);
    auto optimizer = accelerator.prepare(local);
  }
  CHECK(life.use_count() == 2);
  auto [model, loader] = accelerator.prepare(net, counting(3, 1));
  for (auto& batch : loader) {  // the short window at the end applies to all optimizers
    auto window = accelerator.accumulate();
    accelerator.backward(model(batch.data).sum());
  }
  accelerator.free_memory();
  CHECK(life.use_count() == 1);
}

TEST_CASE("a function may return objects prepared from its locals: holders are shared, the optimizer is moved") {
  Accelerator accelerator({.cpu = true});
  const auto make = [&] {
    OneWeight net;
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto data = counting(4, 2);
    return accelerator.prepare(net, std::move(sgd), data);
  };
  auto [model, optimizer, loader] = make();
  int64_t batches = 0;
  for (auto& batch : loader) {
    optimizer.zero_grad();
    accelerator.backward(model(batch.data).sum());
    optimizer.step();
    ++batches;
  }
  CHECK(batches == 2);
  CHECK(model->w.item<double>() == -6.0);
}

TEST_CASE("a loader that is prepared twice returns the same handle, also as a copy") {
  Accelerator accelerator({.cpu = true});
  const auto data = counting(4, 2);
  const auto copy = data;
  CHECK(accelerator.prepare(data) == accelerator.prepare(copy));
  std::optional first = accelerator.prepare(data);
  auto second = accelerator.prepare(copy);
  CHECK(second.unwrap().get() != first->unwrap().get());  // each handle has its own model
  first.reset();
  int64_t batches = 0;
  for (auto& batch : second) batches += batch.data.defined() ? 1 : 0;
  CHECK(batches == 2);
}

TEST_CASE("prepare() of a vector of modules, optimizers or schedules returns a vector of prepared objects") {
  Accelerator accelerator({.cpu = true});
  std::vector<OneWeight> nets{OneWeight(1.0), OneWeight(2.0)};
  std::vector<torch::optim::SGD> steps;
  for (const auto& net : nets) steps.emplace_back(net->parameters(), 1.0);
  auto [models, optimizers] = accelerator.prepare(nets, std::move(steps));
  CHECK(models.size() == 2);
  CHECK(models[1] == accelerator.prepare(nets[1]));
  accelerator.backward(models[0](ones()).sum() + models[1](ones()).sum());
  for (const auto& optimizer : optimizers) optimizer.step();
  CHECK(nets[0]->w.item<double>() == 0.0);
  CHECK(nets[1]->w.item<double>() == 1.0);
}

TEST_CASE("prepared objects are used like the originals") {
  Accelerator accelerator({.cpu = true});
  torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::ReLU(), torch::nn::Linear(4, 2));
  torch::optim::AdamW adamw(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  const auto input = torch::ones({5, 3});
  CHECK(model(input).equal(net->forward(input)));
  CHECK(model->forward(input).equal(net->forward(input)));
  CHECK(model.forward(input).equal(net->forward(input)));
  CHECK(model.parameters().size() == 4);
  CHECK(Accelerator::unwrap_model(model) == net.ptr());
  model.eval();
  CHECK_FALSE(net->is_training());
  model.train();
  CHECK(net->is_training());
  CHECK(optimizer.param_groups().size() == 1);
  model(input).sum().backward();
  optimizer.step();
  CHECK(optimizer.state().size() == 4);
  optimizer.zero_grad();
  CHECK_FALSE(net->parameters()[0].grad().defined());
}

TEST_CASE("a new module at the address of a destroyed one is prepared anew") {
  Accelerator accelerator({.cpu = true});
  const auto place = std::make_unique<std::array<std::byte, sizeof(OneWeightImpl)>>();
  auto* slot = reinterpret_cast<OneWeightImpl*>(place->data());
  auto first = accelerator.prepare(*std::construct_at(slot, 1.0));
  std::destroy_at(slot);
  auto second = accelerator.prepare(*std::construct_at(slot, 2.0));
  CHECK_FALSE(first == second);
  CHECK(second.parameters()[0].item<double>() == 2.0);
  std::destroy_at(slot);
}

TEST_CASE("a new module may have the address of a destroyed one on some ranks only") {
  for (const auto strategy : {accelerate::ShardingStrategy::no_shard, accelerate::ShardingStrategy::full_shard}) {
    accelerate::simulate(2, [strategy] {
      Accelerator accelerator({.cpu = true, .sharding = strategy});
      std::array<std::unique_ptr<std::array<std::byte, sizeof(OneWeightImpl)>>, 2> places;
      for (auto& place : places) place = std::make_unique<std::array<std::byte, sizeof(OneWeightImpl)>>();
      const auto slot = [&](size_t i) { return reinterpret_cast<OneWeightImpl*>(places.at(i)->data()); };
      static_cast<void>(accelerator.prepare(*std::construct_at(slot(0), 1.0)));
      std::destroy_at(slot(0));
      OneWeightImpl* const second = std::construct_at(slot(accelerator.is_main_process() ? 0 : 1), 2.0);
      auto [model, optimizer] = accelerator.prepare(*second, torch::optim::SGD(second->parameters(), 1.0));
      CHECK(accelerator.prepare(*second) == model);
      accelerator.backward(model(ones()).sum());
      optimizer.step();
      accelerator.free_memory();
      CHECK(second->parameters()[0].item<double>() == 1.0);
      std::destroy_at(second);
    });
  }
}

TEST_CASE("a TorchScript module trains") {
  torch::jit::Module script("net");
  script.register_parameter("w", torch::full({1}, 2.0, torch::kDouble).requires_grad_(), false);
  script.define("def forward(self, x):\n  return self.w * x\n");
  on_ranks(1, [&](Accelerator& accelerator) {
    std::vector<torch::Tensor> parameters;
    for (const auto& parameter : script.parameters()) parameters.push_back(parameter);
    auto [model, optimizer] = accelerator.prepare(script, torch::optim::SGD(parameters, 1.0));
    accelerator.backward(model({ones()}).toTensor().sum());
    optimizer.step();
    CHECK(model.forward({ones()}).toTensor().item<double>() == 1.0);
    CHECK(accelerator.prepare(script) == model);
    accelerate::optim::ExponentialMovingAverage ema(model);
    CHECK(ema.averages().at(0).item<double>() == 1.0);
  });
}

TEST_CASE("prepare() accepts only modules, optimizers, loaders and schedulers") {
  CHECK(AnyModule<OneWeight&>);
  CHECK(AnyModule<torch::jit::Module&>);
  CHECK(AnyOptimizer<torch::optim::LBFGS&>);
  CHECK(AnyScheduler<torch::optim::StepLR&>);
  CHECK(AnyLoader<std::vector<torch::Tensor>&>);
  CHECK_FALSE(AnyLoader<int>);
  CHECK_FALSE(AnyLoader<torch::Tensor&>);
  CHECK_FALSE(AnyModule<std::string>);
}

TEST_CASE("an empty module holder or pointer is refused") {
  Accelerator accelerator({.cpu = true});
  OneWeight none = nullptr;
  CHECK_THROWS_WITH(
      (void)accelerator.prepare(none),
      doctest::Contains("prepare: a module holder or pointer is empty (made with nullptr); make the object first"));
  CHECK_THROWS_WITH(
      (void)accelerator.prepare(std::shared_ptr<torch::optim::SGD>()),
      doctest::Contains("prepare: a module holder or pointer is empty (made with nullptr); make the object first"));
}

TEST_CASE("free_memory() forgets prepared objects, and their handles stay usable") {
  Accelerator accelerator({.cpu = true});
  OneWeight net;
  auto model = accelerator.prepare(net);
  accelerator.free_memory();
  CHECK(model(ones()).item<double>() == 0.0);
  CHECK(net.ptr().use_count() == 2);
  CHECK_FALSE(accelerator.prepare(net) == model);
}

TEST_CASE("several Accelerators can exist in one process") {
  Accelerator first({.cpu = true, .gradient_accumulation_steps = 2}), second({.cpu = true});
  CHECK(first.gradient_accumulation_steps() == 2);
  CHECK(second.gradient_accumulation_steps() == 1);
  CHECK(first.num_processes() == 1);
}

TEST_CASE("an unknown optimizer keeps its own step, and closures run") {
  Accelerator accelerator({.cpu = true});
  OneWeight net(1.0);
  torch::optim::LBFGS lbfgs(net->parameters(), torch::optim::LBFGSOptions(1.0));
  torch::optim::SGD sgd(net->parameters(), 0.25);
  auto [model, slow, fast] = accelerator.prepare(net, lbfgs, sgd);
  const auto closure = [&] {
    net->zero_grad();
    auto loss = (model(ones()) - 3).pow(2).sum();
    loss.backward();
    return loss;
  };
  CHECK(fast.step(closure).item<double>() == 4.0);
  CHECK(net->w.item<double>() == 2.0);
  slow.step(closure);
  CHECK(net->w.item<double>() == doctest::Approx(3.0));
}
