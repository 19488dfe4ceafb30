// SPDX-License-Identifier: Apache-2.0
#include "tests/nn/support.hpp"
//
#include <ATen/autocast_mode.h>

#include <map>

using namespace nn_testing;
using accelerate::nn::checkpoint;
using accelerate::nn::recomputing;

namespace {

using Tensors = std::vector<at::Tensor>;

/// Observes the memory of tensors that have other owners.
class Watch {
 public:
  at::Tensor operator()(const at::Tensor& tensor) {
    seen_.emplace_back(tensor.storage().getWeakStorageImpl(), static_cast<int64_t>(tensor.nbytes()));
    peak_ = std::max(peak_, alive());
    return tensor;
  }
  [[nodiscard]] int64_t alive() const {
    int64_t bytes = 0;
    for (const auto& [storage, size] : seen_) bytes += storage.expired() ? 0 : size;
    return bytes;
  }
  [[nodiscard]] int64_t peak() const { return peak_; }

 private:
  std::vector<std::pair<c10::weak_intrusive_ptr<c10::StorageImpl>, int64_t>> seen_;
  int64_t peak_ = 0;
};

struct TwoLayersImpl : torch::nn::Module {
  TwoLayersImpl() {
    first = register_module("first", torch::nn::Linear(4, 4));
    second = register_module("second", torch::nn::Linear(4, 4));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::tanh(first(x))).sin(); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(TwoLayers);

Tensors gradients(const torch::nn::Module& module) { return gradient_testing::gradients_of(module.parameters()); }

bool equal(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return torch::equal(x, y); });
}

at::Tensor leaf(int64_t seed, at::IntArrayRef shape = {3, 4}) { return numbers(shape, seed).requires_grad_(true); }

}  // namespace

TEST_CASE("outputs and gradients of inputs and captured parameters equal the plain call bit for bit") {
  auto net = gradient_testing::built([] { return TwoLayers(); });
  const auto run = [&](bool checkpointed) {
    net->zero_grad();
    const at::Tensor x = leaf(1);
    at::Tensor y = x * 2;
    for (int64_t i = 0; i < 3; ++i) y = checkpointed ? checkpoint(net, y) : net(y);
    y.pow(2).sum().backward();
    Tensors all = gradients(*net);
    all.push_back(y.detach());
    all.push_back(x.grad());
    return all;
  };
  CHECK(equal(run(true), run(false)));
}

TEST_CASE("checkpointed blocks discard intermediate values: eight blocks use an eighth of the memory") {
  Watch watch;
  constexpr int64_t kBlock = 6 * 1000 * 8;  // six results of 1000 float64
  const auto block = [&](at::Tensor x) {
    for (int i = 0; i < 6; ++i) x = watch(torch::tanh(x));
    return x;
  };
  const auto run = [&](bool checkpointed) {
    watch = {};
    const at::Tensor x = leaf(1, {1000});
    at::Tensor y = x * 1;
    for (int i = 0; i < 8; ++i) y = checkpointed ? checkpoint(block, y) : block(y);
    const int64_t kept = watch.alive();
    y.sum().backward();
    return std::pair(kept, watch.peak());
  };
  const auto [plain, plain_peak] = run(false);
  CHECK(plain == 8 * kBlock);
  CHECK(plain_peak == 8 * kBlock);
  const auto [kept, peak] = run(true);
  CHECK(kept == 8 * kBlock / 6);  // the blocks' outputs
  CHECK(peak <= 8 * kBlock / 6 + kBlock);
}

TEST_CASE("dropout is equal in the recompute, and the generator continues as after a plain backward") {
  const auto run = [](bool checkpointed, bool preserve) {
    torch::manual_seed(3);
    const at::Tensor x = leaf(1, {200});
    const auto drop = [](const at::Tensor& in) { return torch::dropout(in * 2, 0.5, true).sin(); };
    const at::Tensor y = checkpointed ? checkpoint({.preserve_rng_state = preserve}, drop, x) : drop(x);
    const at::Tensor between = torch::rand({4});
    y.sum().backward();
    return Tensors{y.detach(), x.grad(), between, torch::rand({4})};
  };
  CHECK(equal(run(true, true), run(false, true)));
  const Tensors other = run(true, false);
  CHECK_FALSE(torch::equal(other[1], run(false, true)[1]));  // another mask, as the option specifies
}

TEST_CASE("without gradients checkpoint() is the plain call: once, the same tensor, nothing saved") {
  int calls = 0;
  const auto same = [&](const at::Tensor& x) -> const at::Tensor& { return ++calls, x; };
  const at::Tensor x = leaf(1);
  {
    const torch::NoGradGuard no_grad;
    CHECK(checkpoint(same, x).is_same(x));
  }
  CHECK(calls == 1);
  CHECK(checkpoint(same, x.detach()).requires_grad() == false);
  CHECK(calls == 2);
  const at::Tensor y = checkpoint(same, x);  // a result that is the input itself
  CHECK(calls == 3);
  (y * 3).sum().backward();
  CHECK(calls == 4);
  CHECK(x.grad().eq(3).all().item<bool>());
}

TEST_CASE("several results in a tree: some without gradient, some that are not part of the loss") {
  struct Made {
    at::Tensor loss, other;
    std::vector<at::Tensor> more;
    int64_t count = 0;
    auto tree_members() { return std::tie(loss, other, more, count); }
  };
  const at::Tensor x = leaf(1), w = leaf(2);
  const auto function = [&](const std::map<std::string, at::Tensor>& in, int64_t count, const std::string& name) {
    const at::Tensor a = in.at("x") * w;
    CHECK(name == "kept");
    return Made{a.sum(), a.exp(), {a.argmax(), a.detach(), a.pow(2)}, count};
  };
  const std::map<std::string, at::Tensor> inputs{{"x", x}, {"none", at::Tensor()}};
  const Made made = checkpoint(function, inputs, 7, std::string("kept"));
  CHECK(made.count == 7);
  CHECK(made.loss.requires_grad());
  CHECK_FALSE(made.more[0].requires_grad());
  CHECK_FALSE(made.more[1].requires_grad());
  (made.loss + made.more[2].sum()).backward();
  const Tensors seen{x.grad(), w.grad()};
  const Made plain = function(inputs, 7, "kept");
  CHECK(equal(seen, torch::autograd::grad({plain.loss + plain.more[2].sum()}, {x, w})));
}

TEST_CASE("hooks fire once, on shared parameters as well: used twice in one function, in two and outside") {
  const at::Tensor w = leaf(1, {4});
  int hooks = 0;
  w.register_hook([&](const at::Tensor& gradient) { return ++hooks, gradient * 10; });
  const at::Tensor x = leaf(2);
  const auto function = [&](const at::Tensor& in) { return (in * w).sin() + w; };
  ((checkpoint(function, x) * checkpoint(function, x * 3)).sum() + w.sum()).backward();
  const at::Tensor seen = w.grad().clone();
  CHECK(hooks == 1);
  w.mutable_grad().reset();
  ((function(x) * function(x * 3)).sum() + w.sum()).backward();
  CHECK(close(seen, w.grad(), 1e-14));
}

TEST_CASE("a captured result of an earlier graph gets its gradient, and its hook fires once") {
  const at::Tensor x = leaf(1);
  const auto run = [&](bool checkpointed) {
    x.mutable_grad().reset();
    const at::Tensor before = x.exp();
    int hooks = 0;
    before.register_hook([&](const at::Tensor& gradient) { return ++hooks, gradient * 2; });
    const auto function = [&](const at::Tensor& in) { return in * before + before.sin(); };
    (checkpointed ? checkpoint(function, x) : function(x)).sum().backward();
    CHECK(hooks == 1);
    return x.grad().clone();
  };
  CHECK(close(run(true), run(false), 1e-14));
}

TEST_CASE("a function of captured tensors alone") {
  const at::Tensor w = leaf(1);
  checkpoint([&] { return w.pow(3); }).sum().backward();
  CHECK(close(w.grad(), 3 * w.detach().pow(2), 1e-14));
}

TEST_CASE("torch::autograd::grad, for some of the leaves or all, and with the graph kept") {
  const at::Tensor x = leaf(1), w = leaf(2);
  int calls = 0;
  const at::Tensor y = checkpoint([&](const at::Tensor& in) { return ++calls, (in * w).sin(); }, x).sum();
  const at::Tensor expected = x.detach() * (x * w).detach().cos();
  CHECK(close(torch::autograd::grad({y}, {w}, {}, true)[0], expected, 1e-14));
  CHECK(close(torch::autograd::grad({y}, {x, w}, {}, true)[1], expected, 1e-14));
  CHECK(calls == 3);
  CHECK_FALSE(w.grad().defined());
  y.backward();
  CHECK_THROWS_WITH_AS(y.backward(), doctest::Contains("Trying to backward through the graph a second time"),
                       c10::Error);
}

TEST_CASE("second derivatives equal those of the plain call") {
  auto net = gradient_testing::built([] { return TwoLayers(); });
  const auto run = [&](bool checkpointed) {
    net->zero_grad();
    const at::Tensor x = leaf(1);
    const at::Tensor y = checkpointed ? checkpoint(net, x * 2) : net(x * 2);
    const at::Tensor first = torch::autograd::grad({y.sum()}, {x}, {}, true, true)[0];
    first.pow(2).sum().backward();
    Tensors all = gradients(*net);
    all.push_back(x.grad());
    return all;
  };
  const Tensors seen = run(true), expected = run(false);
  REQUIRE(seen.size() == expected.size());
  for (size_t i = 0; i < seen.size(); ++i) {
    REQUIRE(seen[i].defined() == expected[i].defined());
    if (seen[i].defined()) CHECK(close(seen[i], expected[i], 1e-13));
  }
}

TEST_CASE("checkpoints within checkpoints, eighty deep") {
  const at::Tensor x = leaf(1), w = leaf(2);
  const std::function<at::Tensor(const at::Tensor&, int)> nested = [&](const at::Tensor& in, int depth) {
    const at::Tensor here = (in * w).sin();
    return depth == 0 ? here : checkpoint([&, depth](const at::Tensor& t) { return nested(t, depth - 1); }, here) + in;
  };
  const std::function<at::Tensor(const at::Tensor&, int)> plain = [&](const at::Tensor& in, int depth) {
    const at::Tensor here = (in * w).sin();
    return depth == 0 ? here : plain(here, depth - 1) + in;
  };
  for (const int depth : {2, 5}) {
    const auto seen = torch::autograd::grad({nested(x, depth).sum()}, {x, w});
    const auto expected = torch::autograd::grad({plain(x, depth).sum()}, {x, w});
    for (size_t i = 0; i < 2; ++i) CHECK(close(seen[i], expected[i], 1e-13));  // another order of summation
  }
  // Each level only wraps the next, so that the number of calls does not double.
  at::Tensor y;
  std::function<at::Tensor(const at::Tensor&)> deep = [&](const at::Tensor& in) { return (in * w).sin(); };
  for (int i = 0; i < 80; ++i) {
    deep = [inner = deep](const at::Tensor& in) { return checkpoint(inner, in); };
  }
  CHECK(equal(torch::autograd::grad({deep(x).sum()}, {x, w}), torch::autograd::grad({(x * w).sin().sum()}, {x, w})));
}

TEST_CASE("a chain of thousands is freed without deep recursion") {
  const at::Tensor x = leaf(1, {2});
  at::Tensor y = x;
  for (int i = 0; i < 5000; ++i) y = checkpoint([](const at::Tensor& in) { return in + 1; }, y);
  y.sum().backward();
  CHECK(x.grad().eq(1).all().item<bool>());
}

TEST_CASE("recompute restores autocast, also if backward runs outside, and earlier cached casts work") {
  const at::Tensor w = numbers({4, 4}, 1, at::kFloat).requires_grad_(true);
  const at::Tensor x = numbers({3, 4}, 2, at::kFloat);
  std::vector<bool> second;
  const auto function = [&](const at::Tensor& in) {
    second.push_back(recomputing());
    CHECK(at::autocast::is_autocast_enabled(at::kCPU));
    return torch::matmul(in, w);
  };
  const auto run = [&](bool checkpointed) {
    w.mutable_grad().reset();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
    const at::Tensor before = torch::matmul(x, w);  // leaves a bfloat16 copy of w in autocast's cache
    at::Tensor y = checkpointed ? checkpoint(function, x) : function(x);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    CHECK((y.scalar_type() == at::kBFloat16));
    y.to(at::kFloat).pow(2).sum().backward();
    CHECK_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    CHECK(at::autocast::is_autocast_cache_enabled());
    return Tensors{y.detach(), w.grad()};
  };
  const Tensors seen = run(true);
  CHECK(equal(seen, run(false)));
  CHECK(second == std::vector<bool>{false, true, false});
}

TEST_CASE("a layer over ranks counts its batch once, although the forward runs twice") {
  SyncBatchNorm layer(4);
  layer->to(at::kDouble);
  const at::Tensor x = leaf(1);
  checkpoint(layer, x).pow(2).sum().backward();
  CHECK(layer->num_batches_tracked.item<int64_t>() == 1);
  CHECK(close(layer->running_mean, x.detach().mean(0) * 0.1));
}

TEST_CASE("a gradient reducer averages checkpointed parts, by plain backward and in early buckets") {
  for (const int64_t ranks : {2, 4}) {
    gradient_testing::check_means(ranks, gradient_testing::make_net,
                                  [](const gradient_testing::NetPtr& net, int64_t rank) {
                                    const auto part = [net](const at::Tensor& x) { return net->with_extra(x); };
                                    const at::Tensor x = gradient_testing::batch(rank);
                                    (checkpoint(part, x) * checkpoint(part, x * 2)).sum().backward();
                                  });
  }
}

TEST_CASE("a gradient reducer keeps the memory saving, in backward too, with the same gradients") {
  run_threads(
      2,
      [](const Group& group) {
        constexpr int64_t kBlock = 6 * 1000 * 8;
        const auto run = [&](bool checkpointed) {
          std::vector<accelerate::gradient::NamedTensor> weights;
          for (int64_t i = 0; i < 8; ++i) weights.push_back({fmt::format("w{}", i), leaf(i, {1000})});
          gradient_testing::GradientReducer gradient_reducer(
              group.duplicate(), weights, {.buckets = {.cap_bytes = 20'000, .first_cap_bytes = 10'000}});
          const at::Tensor x = numbers({1000}, 20 + group.rank());
          Tensors gradients;
          for (int64_t round = 0; round < 3; ++round) {  // the first has no buckets yet
            Watch watch;
            gradient_reducer.zero_all();
            at::Tensor y = x;
            for (const auto& weight : weights) {
              const auto block = [&watch, w = weight.tensor](at::Tensor z) {
                z = z * w;
                for (int i = 0; i < 6; ++i) z = watch(torch::tanh(z));
                return z;
              };
              y = checkpointed ? checkpoint(block, y) : block(y);
            }
            const int64_t kept = watch.alive();
            y.sum().backward();
            CHECK(kept == (checkpointed ? 8 * kBlock / 6 : 8 * kBlock));
            CHECK(watch.peak() <= (checkpointed ? 8 * kBlock / 6 + kBlock : 8 * kBlock));
            for (const auto& weight : weights) gradients.push_back(weight.tensor.grad().clone());
          }
          CHECK(bit_equal(group, gradients));
          return gradients;
        };
        CHECK(equal(run(true), run(false)));
      },
      kTimeout);
}

TEST_CASE("a backward with checkpointed parts is one reduction with as many operations as a plain one") {
  run_threads(
      2,
      [](const Group& group) {
        const auto made = [&](bool checkpointed) {
          auto net = gradient_testing::built(gradient_testing::make_net);
          gradient_testing::GradientReducer gradient_reducer(group, gradient_testing::named(net),
                                                             gradient_testing::small_buckets());
          int64_t operations = 0;
          for (int64_t round = 0; round < 3; ++round) {
            gradient_reducer.zero_all();
            operations += operations_in(group, [&] {
              const auto part = [&](const at::Tensor& x) { return net->with_extra(x); };
              const at::Tensor x = gradient_testing::batch(group.rank(), round);
              const at::Tensor y = checkpointed ? checkpoint(part, x) : part(x);
              (y * (checkpointed ? checkpoint(part, x * 2) : part(x * 2))).sum().backward();
            });
          }
          return operations;
        };
        CHECK(made(true) == made(false));
      },
      kTimeout);
}
