// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>

#include "accelerate/device/device_selection.hpp"
#include "accelerate/job/batch_size.hpp"
#include "accelerate/nn/activation_checkpoint.hpp"
#include "accelerate/nn/convert.hpp"
#include "accelerate/nn/data_parallel.hpp"
#include "accelerate/precision/autocast.hpp"
#include "tests/accelerator/ranks.hpp"
#include "tests/refusal.hpp"

using accelerate::DataParallel;
using testing::refusal;

namespace {

const at::Device kCpu(at::kCPU);
const std::vector<at::Device> kThree{kCpu, kCpu, kCpu};

/// Can be cloned.
struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(4, 8));
    last = register_module("last", torch::nn::Linear(8, 2));
    scale = register_buffer("scale", torch::ones({1}));
    calls = register_buffer("calls", torch::zeros({1}));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    calls += 1;
    return last(torch::tanh(first(x))) * scale;
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
  at::Tensor scale, calls;
};
TORCH_MODULE(Net);

/// Cannot be cloned.
struct StiffImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return line(x); }
  torch::nn::Linear line = register_module("line", torch::nn::Linear(4, 2));
};
TORCH_MODULE(Stiff);

struct TaggedImpl : torch::nn::Cloneable<TaggedImpl> {
  TaggedImpl() { reset(); }
  void reset() override { line = register_module("line", torch::nn::Linear(4, 2)); }
  using Nested = std::map<std::string, std::vector<at::Tensor>>;
  Nested forward(const std::pair<at::Tensor, at::Tensor>& pair, const at::Tensor& factor, int64_t times) {
    return {{"sum", {line(pair.first + pair.second) * factor * times}}, {"mean", {pair.first.mean()}}};
  }
  torch::nn::Linear line{nullptr};
};
TORCH_MODULE(Tagged);

std::vector<at::Tensor> gradients_of_replicas(const torch::nn::Module& module) {
  std::vector<at::Tensor> list;
  for (const auto& parameter : module.parameters()) list.push_back(parameter.grad().clone());
  return list;
}

}  // namespace

TEST_CASE("output and gradients equal those of the module alone, for any number of samples and devices") {
  for (const int64_t samples : {1, 2, 3, 7, 12}) {
    for (const size_t devices : {1, 2, 5}) {
      CAPTURE(samples);
      CAPTURE(devices);
      Net net;
      const at::Tensor batch = torch::randn({samples, 4}, at::kDouble);
      const at::Tensor alone_in = batch.clone().requires_grad_(true), in = batch.clone().requires_grad_(true);
      const at::Tensor expected = net(alone_in);
      expected.pow(2).mean().backward();
      const auto expected_gradients = gradients_of_replicas(*net);
      net->zero_grad();
      DataParallel parallel(net, std::vector<at::Device>(devices, kCpu));
      const at::Tensor seen = parallel(in);
      seen.pow(2).mean().backward();
      CHECK(torch::allclose(seen, expected, 1e-12, 1e-14));
      CHECK(torch::allclose(in.grad(), alone_in.grad(), 1e-12, 1e-14));
      const auto seen_gradients = gradients_of_replicas(*net);
      for (size_t i = 0; i < seen_gradients.size(); ++i) {
        CHECK(torch::allclose(seen_gradients[i], expected_gradients[i], 1e-12, 1e-14));
      }
    }
  }
}

TEST_CASE("a checkpointed module is recomputed in its replicas, which live until backward ends") {
  struct Checkpointed : torch::nn::Cloneable<Checkpointed> {
    Checkpointed() { reset(); }
    ~Checkpointed() override { --alive(); }
    static std::atomic<int>& alive() {
      static std::atomic<int> count{0};
      return count;
    }
    void reset() override {
      ++alive();  // once per object, created or copied
      net = register_module("net", Net());
    }
    at::Tensor forward(const at::Tensor& x) {
      return accelerate::nn::checkpoint(
          [this](const at::Tensor& y) {
            return accelerate::nn::checkpoint([this](const at::Tensor& z) { return net(z); }, y * 2);
          },
          x);
    }
    Net net{nullptr};
  };
  auto net = std::make_shared<Checkpointed>();
  const at::Tensor batch = torch::randn({7, 4}, at::kDouble);
  net->net(batch * 2).pow(2).sum().backward();
  const auto expected = gradients_of_replicas(*net);
  net->zero_grad();
  DataParallel parallel(net, kThree);
  const int before = Checkpointed::alive();
  const at::Tensor loss = parallel(batch).pow(2).sum();
  CHECK(Checkpointed::alive().load() > before);
  loss.backward();
  CHECK(Checkpointed::alive().load() == before);
  const auto seen = gradients_of_replicas(*net);
  for (size_t i = 0; i < seen.size(); ++i) CHECK(torch::allclose(seen[i], expected[i], 1e-12, 1e-14));
}

TEST_CASE("nested inputs and outputs are split and joined, numbers are copied to every replica") {
  Tagged net;
  DataParallel parallel(net, kThree);
  const std::pair pair{torch::randn({7, 4}), torch::randn({7, 4})};
  const at::Tensor factor = torch::tensor(2.0);
  const auto seen = parallel(pair, factor, int64_t{3});
  CHECK(torch::allclose(seen.at("sum")[0], net->line(pair.first + pair.second) * 6));
  CHECK(seen.at("mean")[0].sizes() == at::IntArrayRef{3});
  CHECK(torch::allclose(seen.at("mean")[0][0], pair.first.narrow(0, 0, 3).mean()));
}

TEST_CASE("another dimension can be split") {
  struct Doubles : torch::nn::Cloneable<Doubles> {
    void reset() override {}
    at::Tensor forward(const at::Tensor& x) { return x * x.size(1); }
  };
  DataParallel parallel(std::make_shared<Doubles>(), {kCpu, kCpu}, {}, 1);
  CHECK(parallel(torch::ones({3, 4})).equal(torch::full({3, 4}, 2.0)));
}

TEST_CASE("replicas draw no random numbers, cloned or made by a factory, also if one cannot be made") {
  Net net;
  Stiff stiff;
  const auto drawn_after = [](const std::function<void()>& run) {
    torch::manual_seed(9);
    run();
    return torch::rand({3});
  };
  const at::Tensor expected = drawn_after([] {});
  CHECK(drawn_after([&] { DataParallel(net, kThree)(torch::ones({6, 4}, at::kDouble)); }).equal(expected));
  const auto make = [] { return std::make_shared<StiffImpl>(); };
  CHECK(drawn_after([&] { DataParallel(stiff, kThree, {}, 0, make)(torch::ones({6, 4})); }).equal(expected));
  const auto draws_and_throws = []() -> std::shared_ptr<StiffImpl> {
    (void)torch::rand({5});
    throw std::runtime_error("no more");
  };
  CHECK(drawn_after([&] {
          DataParallel parallel(stiff, kThree, {}, 0, draws_and_throws);
          CHECK_THROWS_WITH(parallel(torch::ones({6, 4})), "no more");
        }).equal(expected));
}

TEST_CASE("a forward with random numbers continues the generator of the first part") {
  struct Draws : torch::nn::Cloneable<Draws> {
    Draws() { reset(); }
    void reset() override { line = register_module("line", torch::nn::Linear(4, 2)); }
    at::Tensor forward(const at::Tensor& x) { return x + torch::rand({1}); }
    torch::nn::Linear line{nullptr};
  };
  DataParallel parallel(std::make_shared<Draws>(), {kCpu, kCpu});
  torch::manual_seed(9);
  const at::Tensor drawn = torch::rand({2});  // once per replica, in any order
  torch::manual_seed(9);
  const at::Tensor seen = parallel(torch::zeros({2}));
  CHECK(std::get<0>(seen.sort()).equal(std::get<0>(drawn.sort())));
}

TEST_CASE("two forwards before a backward both contribute gradients") {
  Net net;
  DataParallel parallel(net, kThree);
  const at::Tensor one = torch::randn({6, 4}, at::kDouble), other = torch::randn({6, 4}, at::kDouble);
  const at::Tensor first = parallel(one), second = parallel(other);
  (first.sum() + second.sum()).backward();
  const auto seen = gradients_of_replicas(*net);
  net->zero_grad();
  (net(one).sum() + net(other).sum()).backward();
  const auto expected = gradients_of_replicas(*net);
  for (size_t i = 0; i < seen.size(); ++i) CHECK(torch::allclose(seen[i], expected[i], 1e-12, 1e-14));
}

TEST_CASE("replicas have the module's buffers; only the first part changes them") {
  Net net;
  net->scale.fill_(3);
  DataParallel parallel(net, kThree);
  const at::Tensor batch = torch::randn({6, 4}, at::kDouble);
  CHECK(torch::allclose(parallel(batch), net(batch), 1e-12, 1e-14));
  CHECK(net->calls.item<double>() == 2);
}

TEST_CASE("replicas have the module's mode and the caller's gradient mode") {
  struct Mode : torch::nn::Cloneable<Mode> {
    void reset() override {}
    at::Tensor forward(const at::Tensor& x) {
      return torch::full({x.size(0), 2}, 0.0) +
             torch::tensor({is_training() ? 1. : 0., at::GradMode::is_enabled() ? 1. : 0.});
    }
  };
  auto module = std::make_shared<Mode>();
  DataParallel parallel(module, kThree);
  CHECK(parallel(torch::ones({3})).equal(torch::ones({3, 2})));
  parallel.eval();
  const at::NoGradGuard no_grad;
  CHECK(parallel(torch::ones({3})).equal(torch::zeros({3, 2})));
}

TEST_CASE("replicas keep each layer's own mode, cloned or made by a factory") {
  struct Modes : torch::nn::Cloneable<Modes> {
    Modes() { reset(); }
    void reset() override {
      block = register_module("block", torch::nn::Sequential(torch::nn::BatchNorm1d(1), torch::nn::Dropout()));
      last = register_module("last", torch::nn::Dropout());
    }
    at::Tensor forward(const at::Tensor& x) {
      const auto on = [](const torch::nn::Module& module) { return module.is_training() ? 1. : 0.; };
      return torch::zeros({x.size(0), 4}) + torch::tensor({on(*block), on(*block[0]), on(*block[1]), on(*last)});
    }
    torch::nn::Sequential block{nullptr};
    torch::nn::Dropout last{nullptr};
  };
  auto module = std::make_shared<Modes>();
  DataParallel cloned(module, kThree);
  DataParallel<Modes> made(module, kThree, {}, 0, [] { return std::make_shared<Modes>(); });
  const auto both_are = [&](std::vector<double> modes) {
    const auto expected = torch::tensor(modes).expand({3, 4});
    CHECK(cloned(torch::ones({3})).equal(expected));
    CHECK(made(torch::ones({3})).equal(expected));
  };
  module->block[0]->as<torch::nn::BatchNorm1d>()->eval();
  both_are({1, 0, 1, 1});
  module->block->eval();
  module->block[1]->as<torch::nn::Dropout>()->train();
  both_are({0, 0, 1, 1});
  module->eval();
  module->last->train();
  both_are({0, 0, 0, 1});
  module->train();
  both_are({1, 1, 1, 1});
}

TEST_CASE("a frozen parameter stays without gradient") {
  Net net;
  net->first->weight.set_requires_grad(false);
  DataParallel parallel(net, kThree);
  parallel(torch::randn({6, 4}, at::kDouble)).sum().backward();
  CHECK(!net->first->weight.grad().defined());
  CHECK(net->last->weight.grad().defined());
}

TEST_CASE("a factory makes replicas of a module that cannot be cloned") {
  Stiff net;
  DataParallel parallel(net, kThree, {}, 0, [] { return std::make_shared<StiffImpl>(); });
  const at::Tensor batch = torch::randn({7, 4});
  CHECK(torch::allclose(parallel(batch), net(batch)));
  parallel(batch).sum().backward();
  CHECK(torch::allclose(net->line->bias.grad(), torch::full({2}, 7.0)));
}

TEST_CASE("a module that cannot be copied is an error that names both remedies") {
  Stiff net;
  DataParallel parallel(net, kThree);
  CHECK(refusal([&] {
          parallel(torch::ones({3, 4}));
        }) == "DataParallel: " + net->name() +
                  " cannot be copied; derive it from torch::nn::Cloneable and make its layers in reset(), or pass a "
                  "factory that creates another one");
  CHECK(parallel(torch::ones({1, 4})).sizes() == at::IntArrayRef{1, 2});  // one part needs no copy
}

TEST_CASE("a class that inherits clone(), and a factory that returns nothing, are refused") {
  struct Mine : torch::nn::LinearImpl {
    Mine() : LinearImpl(4, 2) {}
  };
  DataParallel mine(std::make_shared<Mine>(), kThree);
  const std::string derived = refusal([&] { mine(torch::ones({3, 4})); });
  CHECK(derived.starts_with("DataParallel: clone() of "));
  CHECK(
      derived.ends_with("Mine makes a torch::nn::LinearImpl, the class that it derives from; override clone() in the "
                        "class itself, derive "
                        "it from torch::nn::Cloneable of itself, or pass a factory that creates another one"));
  DataParallel<Mine> made(std::make_shared<Mine>(), kThree, {}, 0, [] { return std::make_shared<Mine>(); });
  CHECK(made(torch::ones({3, 4})).sizes() == at::IntArrayRef{3, 2});
  DataParallel<Mine> nothing(std::make_shared<Mine>(), kThree, {}, 0, [] { return std::shared_ptr<Mine>(); });
  CHECK(refusal([&] {
          nothing(torch::ones({3, 4}));
        }) ==
        "DataParallel: the factory returned a null pointer; it must create another module of the same class, as "
        "clone() of the "
        "class itself would");
}

TEST_CASE("replicas compute concurrently") {
  struct Meeting : torch::nn::Cloneable<Meeting> {
    Meeting() = default;
    void reset() override {}
    at::Tensor forward(const at::Tensor& x) {
      // If replicas ran one after another, this wait would time out.
      std::unique_lock lock(place->mutex);
      if (++place->there == 3) place->all.notify_all();
      const bool met = place->all.wait_for(lock, std::chrono::seconds(60), [&] { return place->there >= 3; });
      return torch::full({x.size(0)}, met ? 1.0 : 0.0);
    }
    struct ReplicaPlacement {
      std::mutex mutex;
      std::condition_variable all;
      int there = 0;
    };
    std::shared_ptr<ReplicaPlacement> place = std::make_shared<ReplicaPlacement>();  // clones share it
  };
  DataParallel parallel(std::make_shared<Meeting>(), kThree);
  CHECK(parallel(torch::ones({3})).equal(torch::ones({3})));
}

TEST_CASE("a SyncBatchNorm over ranks is refused in a module that is replicated") {
  accelerate::comm::run_threads(2, [](const accelerate::comm::Group& group) {
    torch::nn::Sequential net(torch::nn::Linear(4, 4), accelerate::nn::SyncBatchNorm(4));
    accelerate::nn::connect_sync_batchnorm(*net, group);
    DataParallel alone(net, {kCpu});
    CHECK(alone(torch::ones({4, 4})).size(0) == 4);
    DataParallel parallel(net, {kCpu, kCpu});
    CHECK(refusal([&] {
            parallel(torch::ones({4, 4}));
          }) == accelerate::base::prefix(group.place()) +
                    "DataParallel: 1 is a SyncBatchNorm over 2 ranks, which copies of a module cannot query at the "
                    "same time; give each device a rank of its own, or let it be a BatchNorm");
  });
}

TEST_CASE("outputs are joined on the output device") {
  Net net;
  DataParallel parallel(net, kThree, at::Device("meta"));
  CHECK(parallel(torch::ones({7, 4}, at::kDouble)).device() == at::Device("meta"));
  CHECK(parallel(torch::ones({7, 4}, at::kDouble)).sizes() == at::IntArrayRef{7, 2});
}

TEST_CASE("an exception of a replica is thrown with its device after all replicas have ended") {
  struct Picky : torch::nn::Cloneable<Picky> {
    void reset() override {}
    at::Tensor forward(const at::Tensor& x) {
      if (x[0].item<double>() == 2) throw std::runtime_error("no twos");
      return x;
    }
  };
  DataParallel parallel(std::make_shared<Picky>(), kThree);
  CHECK(refusal([&] { parallel(torch::arange(3, at::kDouble)); }) == "DataParallel: copy 2 on cpu: no twos");
  CHECK(parallel(torch::zeros({3})).equal(torch::zeros({3})));
}

TEST_CASE("out of memory in a replica is recognised, prepared with its inventory, and a batch size is found") {
  struct Greedy : torch::nn::Cloneable<Greedy> {
    Greedy() { reset(); }
    void reset() override { weight = register_parameter("weight", torch::ones({3})); }
    at::Tensor forward(const at::Tensor& x) {
      if (x.size(0) > 2 && !allocator_says) throw std::bad_alloc();
      if (x.size(0) > 2) {
        throw std::runtime_error(
            "[enforce fail at a.cpp:1] err == 0. DefaultCPUAllocator: can't allocate memory: 9 bytes");
      }
      return x * weight;
    }
    at::Tensor weight;
    bool allocator_says = false;
  };
  auto net = std::make_shared<Greedy>();
  DataParallel parallel(net, {kCpu, kCpu});
  const auto thrown = [](const std::function<void()>& run) {
    try {
      run();
    } catch (const std::exception& error) {
      CHECK(accelerate::job::is_out_of_memory(error));
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(thrown([&] {
          parallel(torch::ones({6, 3}));
        }).starts_with("DataParallel: copy 0 on cpu: the host is out of memory: std::bad_alloc"));
  accelerate::Accelerator accelerator({.cpu = true});
  auto model = accelerator.prepare(parallel);
  const std::string there =
      "; known tensors: 12 bytes in 1 tensor (parameters 12 bytes), the largest module.weight [3] Float (12 "
      "bytes); ";
  const std::string forward = accelerate::base::prefix(accelerator.place()) + "forward: DataParallel: copy 0 on cpu: ";
  CHECK(thrown([&] {
          model(torch::ones({6, 3}));
        }).starts_with(forward + "the host is out of memory: std::bad_alloc" + there));
  net->allocator_says = true;
  CHECK(thrown([&] {
          model(torch::ones({6, 3}));
        }).starts_with(forward + "DefaultCPUAllocator: can't allocate memory: 9 bytes" + there));
  CHECK(accelerator.find_executable_batch_size([&](int64_t size) { model(torch::ones({size, 3})); }, 7) == 4);
}

TEST_CASE("replicas compute in the caller's precision") {
  Stiff net;
  DataParallel parallel(net, kThree, {}, 0, [] { return std::make_shared<StiffImpl>(); });
  const accelerate::precision::Autocast half({{.dtype = at::kHalf}});
  const bool in_half = parallel(torch::ones({7, 4})).scalar_type() == at::kHalf;
  CHECK(in_half);  // for bfloat16 parts it would be float32
}

TEST_CASE("every replica gets an undefined tensor unchanged") {
  struct Optional : torch::nn::Cloneable<Optional> {
    void reset() override {}
    at::Tensor forward(const std::pair<at::Tensor, at::Tensor>& x) {
      return x.second.defined() ? x.first * x.second : -x.first;
    }
  };
  DataParallel parallel(std::make_shared<Optional>(), kThree);
  const at::Tensor x = torch::arange(7, at::kDouble);
  CHECK(parallel(std::pair{x, at::Tensor()}).equal(-x));
  CHECK(parallel(std::pair{x, x}).equal(x * x));
}

TEST_CASE("a batch without samples is computed once") {
  Net net;
  DataParallel parallel(net, kThree);
  CHECK(parallel(torch::ones({0, 4}, at::kDouble)).sizes() == at::IntArrayRef{0, 2});
  CHECK(net->calls.item<double>() == 1);
}

TEST_CASE("a layer with two names has one gradient, the sum") {
  struct Twice : torch::nn::Cloneable<Twice> {
    Twice() { reset(); }
    void reset() override {
      line = register_module("line", torch::nn::Linear(4, 4));
      again = register_module("again", line);
    }
    at::Tensor forward(const at::Tensor& x) { return again(line(x)); }
    torch::nn::Linear line{nullptr}, again{nullptr};
  };
  auto net = std::make_shared<Twice>();
  net->to(at::kDouble);
  const at::Tensor batch = torch::randn({6, 4}, at::kDouble);
  net->forward(batch).pow(2).sum().backward();
  const auto expected = net->line->weight.grad().clone();
  net->zero_grad();
  DataParallel parallel(net, kThree);
  parallel(batch).pow(2).sum().backward();
  CHECK(torch::allclose(net->line->weight.grad(), expected, 1e-12, 1e-13));
}

TEST_CASE("invalid calls are refused with both values") {
  Net net;
  CHECK(refusal([&] { DataParallel(net, std::vector<at::Device>{}); }) ==
        "DataParallel: there are 0 devices, must be at least 1");
  const auto gpus = accelerate::device::accelerator().count;
  const std::string not_there = fmt::format(
      "DataParallel: cuda:99 is requested, {} GPU{} visible; request {}cpu, or look at nvidia-smi and "
      "CUDA_VISIBLE_DEVICES",
      gpus, gpus == 1 ? " is" : "s are", gpus == 0 ? "" : fmt::format("at most cuda:{} or ", gpus - 1));
  CHECK(refusal([&] { DataParallel(net, {kCpu, at::Device("cuda:99")}); }) == not_there);
  CHECK(refusal([&] { DataParallel(net, kThree, at::Device("cuda:99")); }) == not_there);
  CHECK(refusal([&] { DataParallel(std::shared_ptr<NetImpl>(), kThree); }) == "DataParallel: the module is empty");
  CHECK(refusal([&] {
          DataParallel(net, {at::Device("meta"), kCpu})(torch::ones({2, 4}));
        }) ==
        "DataParallel: first.weight is on cpu, the first device is meta; move the module there, or begin the "
        "devices with cpu: prepare() moves a module to its rank's device");
  CHECK(refusal([&] {
          DataParallel(net, kThree, {}, 2)(torch::ones({2, 4}));
        }) == "DataParallel: dim is 2, an input has 2 dimensions");
  Tagged tagged;
  CHECK(refusal([&] {
          DataParallel(tagged, kThree)(std::pair{torch::ones({3, 4}), torch::ones({2, 4})}, torch::tensor(1.0),
                                       int64_t{1});
        }) ==
        "DataParallel: one input has 3 along dim 0, another 2; all inputs are split in the same way: bind other "
        "arguments to the module");
  Stiff stiff;
  struct Wide : StiffImpl {
    Wide() { replace_module("line", torch::nn::Linear(4, 3)); }
  };
  DataParallel other(stiff, kThree, {}, 0, [] { return std::make_shared<Wide>(); });
  CHECK(
      refusal([&] {
        other(torch::ones({3, 4}));
      }) ==
      "DataParallel: line.weight is [2, 4] in the module, [3, 4] in its copy; the factory must create the same layers");
}

TEST_CASE("prepared ranks with several devices each train as one process") {
  const at::Tensor data = torch::randn({12, 4}, at::kDouble), target = torch::randn({12, 2}, at::kDouble);
  Net start;
  const auto trained = [&](int64_t ranks, size_t devices) {
    std::vector<at::Tensor> weights;
    on_ranks(ranks, [&](accelerate::Accelerator& accelerator) {
      Net net(std::dynamic_pointer_cast<NetImpl>(start->clone()));
      DataParallel parallel(net, std::vector<at::Device>(devices, kCpu));
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto loader = accelerate::data::from_tensors(data, target, {.batch_size = 12 / ranks});
      auto [model, optimizer, batches] = accelerator.prepare(parallel, sgd, loader);
      for (int epoch = 0; epoch < 3; ++epoch) {
        for (auto& [x, y] : batches) {
          optimizer.zero_grad();
          accelerator.backward(torch::mse_loss(model(x), y));
          optimizer.step();
        }
      }
      if (accelerator.is_main_process()) weights = net->parameters();
    });
    return weights;
  };
  const auto alone = trained(1, 1);
  for (const auto& [ranks, devices] : std::vector<std::pair<int64_t, size_t>>{{1, 3}, {2, 2}}) {
    const auto seen = trained(ranks, devices);
    for (size_t i = 0; i < alone.size(); ++i) CHECK(torch::allclose(seen[i], alone[i], 1e-12, 1e-13));
  }
}
