// SPDX-License-Identifier: Apache-2.0
// Misuse and failures: dropped gradients, foreign hooks, exceptions, lost ranks, wrong calls.
#include "accelerate/base/error.hpp"
#include "support.hpp"

using namespace gradient_testing;
using accelerate::Error;
using accelerate::ErrorKind;
using accelerate::comm::run_threads;
using accelerate::gradient::run_backward;

namespace {

void plain_step(const NetPtr& net, int64_t rank) { net->with_extra(batch(rank)).pow(2).sum().backward(); }

// Passes values on, and throws in backward if it is enabled.
struct Bomb : torch::autograd::Function<Bomb> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    throw std::runtime_error("bomb");
  }
};

struct CountingHook : torch::autograd::PostAccumulateGradHook {
  explicit CountingHook(int& the_calls) : calls(the_calls) {}
  void operator()(const torch::autograd::Variable& parameter) override {
    ++calls;
    parameter.mutable_grad().mul_(2);
  }
  int& calls;
};

}  // namespace

TEST_CASE("gradients that user code drops, replaces or detaches are copied back into the buckets") {
  const Grads expected = truth(2, make_net, plain_step);
  run_threads(2, [&](const Group& group) {
    auto net = built(make_net);
    torch::optim::SGD stock(net->parameters(), 0.1);
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    for (int way = 0; way < 7; ++way) {
      CAPTURE(way);
      if (way % 6 == 0) gradient_reducer.zero_all();
      if (way == 1) stock.zero_grad();
      if (way == 2) stock.zero_grad(false);
      if (way == 3) net->zero_grad();
      if (way == 4) {
        for (const auto& parameter : net->parameters()) parameter.mutable_grad() = torch::zeros_like(parameter);
      }
      if (way == 5) {
        for (const auto& parameter : net->parameters()) parameter.mutable_grad() = parameter.grad().detach().zero_();
      }
      plain_step(net, group.rank());
      CHECK(same(gradients_of(net->parameters()), expected));
      CHECK(bit_equal(group, gradients_of(net->parameters())));
    }
  });
}

TEST_CASE("clipping on buckets includes the user's changes to the gradients") {
  run_threads(2, [](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    plain_step(net, group.rank());
    net->first->weight.mutable_grad().reset();
    net->second->bias.mutable_grad() = torch::full({3}, 2.0, at::kDouble);
    double expected = 0;
    for (const auto& parameter : net->parameters()) {
      if (parameter.grad().defined()) expected += parameter.grad().pow(2).sum().item<double>();
    }
    double seen = 0;
    for (const at::Tensor& flat : gradient_reducer.gradients()) seen += flat.pow(2).sum().item<double>();
    CHECK(seen == doctest::Approx(expected).epsilon(1e-12));
    CHECK_FALSE(net->first->weight.grad().defined());
    CHECK(net->second->bias.grad()[0].item<double>() == 2.0);
  });
}

TEST_CASE("gradients that user code writes count as used") {
  run_threads(2, [](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    for (int round = 0; round < 3; ++round) {
      gradient_reducer.zero_all();
      net->extra->bias.mutable_grad() = torch::full({3}, static_cast<double>(group.rank() + 1), at::kDouble);
      net->forward(batch(group.rank())).sum().backward();
      REQUIRE(net->extra->bias.grad().defined());
      CHECK(net->extra->bias.grad()[0].item<double>() == 1.5);
    }
  });
}

TEST_CASE("the user's post-accumulate hook still runs, and its change is reduced") {
  Grads expected = truth(2, make_net, plain_step);
  expected[0] = expected[0] * 2;
  run_threads(2, [&](const Group& group) {
    auto net = built(make_net);
    int calls = 0;
    if (group.rank() == 0) {
      torch::autograd::impl::set_post_acc_grad_hooks(net->first->weight, std::make_unique<CountingHook>(calls));
    }
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    if (group.rank() == 1) {
      torch::autograd::impl::set_post_acc_grad_hooks(net->first->weight, std::make_unique<CountingHook>(calls));
    }
    for (int round = 1; round <= 3; ++round) {
      gradient_reducer.zero_all();
      plain_step(net, group.rank());
      CHECK(calls == round);
      CHECK(same(gradients_of(net->parameters()), expected));
    }
    torch::autograd::impl::set_post_acc_grad_hooks(net->first->weight, nullptr);
  });
}

TEST_CASE("a backward that throws does not affect the next one, plain and through run_backward") {
  const Grads expected = truth(2, make_net, plain_step);
  const auto exploding = [](const NetPtr& net, int64_t rank) {
    // second's and extra's gradients arrive, first's do not.
    const auto hidden = Bomb::apply(torch::tanh(net->first(batch(rank))));
    (net->second(hidden) + net->extra(hidden)).pow(2).sum().backward();
  };
  enum class Zeroing { gradient_reducer, drop };
  for (const bool through_run_backward : {false, true}) {
    for (const Zeroing zeroing : {Zeroing::gradient_reducer, Zeroing::drop}) {
      for (const int good_first : {0, 2}) {
        run_threads(2, [&](const Group& group) {
          auto net = built(make_net);
          torch::optim::SGD stock(net->parameters(), 0.1);
          GradientReducer gradient_reducer(group, named(net), small_buckets());
          const std::vector<GradientReducer*> gradient_reducers{&gradient_reducer};
          const auto round = [&](const auto& backward) {
            zeroing == Zeroing::gradient_reducer ? gradient_reducer.zero_all() : stock.zero_grad();
            const auto call = [&] { backward(net, group.rank()); };
            through_run_backward ? run_backward(gradient_reducers, group, call) : call();
          };
          for (int i = 0; i < good_first; ++i) round(plain_step);
          for (int i = 0; i < 2; ++i) {
            CHECK_THROWS_WITH(round(exploding), "bomb");
            for (int good = 0; good < 2; ++good) {
              round(plain_step);
              CHECK(same(gradients_of(net->parameters()), expected));
              CHECK(bit_equal(group, gradients_of(net->parameters())));
            }
          }
        });
      }
    }
  }
}

TEST_CASE("a step on gradients that were never reduced is refused unless local steps are enabled") {
  run_threads(2, [](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    gradient_reducer.set_sync(false);
    net->forward(batch(group.rank())).sum().backward();
    CHECK(gradient_reducer.has_pending_gradients());
    CHECK(gradient_reducer.first_unreduced());
    CHECK(text_of([&] { gradient_reducer.before_step(); }) ==
          "optimizer.step: the gradient of parameter first.weight is this rank's own, not the mean of 2 ranks: it is "
          "from before prepare(), or no_sync was open at the last model(x) before its backward (model->forward(x) does "
          "not count); run one synchronised backward before the step");
    gradient_reducer.set_local_steps_allowed(true);
    gradient_reducer.before_step();
    gradient_reducer.set_local_steps_allowed(false);
    gradient_reducer.set_sync(true);
    net->forward(batch(group.rank())).sum().backward();
    CHECK_FALSE(gradient_reducer.has_pending_gradients());
    gradient_reducer.before_step();
    gradient_reducer.set_sync(false);
    net->forward(batch(group.rank())).sum().backward();
    gradient_reducer.zero_all();
    CHECK_FALSE(gradient_reducer.first_unreduced());
    gradient_reducer.before_step();
  });
}

TEST_CASE("a second backward in one reduction is refused if the first has already started it") {
  run_threads(2, [](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    const std::vector<GradientReducer*> gradient_reducers{&gradient_reducer};
    plain_step(net, group.rank());
    plain_step(net, group.rank());
    const std::string text = text_of([&] {
      run_backward(gradient_reducers, group, [&] {
        plain_step(net, group.rank());
        plain_step(net, group.rank());
      });
    });
    CHECK(text.find(" got a second gradient in one reduction, while the first is on its way to 2 ranks; call backward "
                    "once per reduction, or all but the last under no_sync") != std::string::npos);
    CHECK(text.find("backward: parameter ") == 0);
    gradient_reducer.zero_all();
    plain_step(net, group.rank());
    CHECK(bit_equal(group, gradients_of(net->parameters())));
  });
}

TEST_CASE("static_graph with a changing graph is an error on the rank that detects it") {
  GradientReducerOptions options = small_buckets();
  options.static_graph = true;
  run_threads(2, [&](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net), options);
    net->forward(batch(group.rank())).sum().backward();
    gradient_reducer.zero_all();
    CHECK(text_of([&] { plain_step(net, group.rank()); }) ==
          "backward: static_graph is set, but parameter extra.weight was unused in the first reduction and is used "
          "now; keep static_graph off");
    gradient_reducer.zero_all();
    auto other = built(make_net);
    GradientReducer partly(group, named(other), options);
    const auto use = [&] {
      (group.rank() == 0 ? other->with_extra(batch(0)) : other->forward(batch(1))).sum().backward();
    };
    CHECK(text_of(use) ==
          "backward: static_graph is set, but parameter extra.weight was used on 1 of 2 ranks in the first reduction; "
          "keep static_graph off");
  });
}

TEST_CASE("backward throws an Error of kind peer for a lost peer, and a step on the gradients is refused") {
  std::atomic<int> threw = 0;
  try {
    run_threads(
        2,
        [&](const Group& group) {
          auto net = built(make_net);
          GradientReducer gradient_reducer(group, named(net), small_buckets());
          plain_step(net, group.rank());
          if (group.rank() == 1) return;  // exits while rank 0 continues
          gradient_reducer.zero_all();
          try {
            plain_step(net, group.rank());
          } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::peer);
            ++threw;
            CHECK(text_of([&] { gradient_reducer.before_step(); }) ==
                  "optimizer.step: the reduction of the gradients broke off with an error, so they differ between the "
                  "2 ranks; zero them before the next backward");
          }
        },
        std::chrono::milliseconds(300));
  } catch (const Error&) {
  }
  CHECK(threw == 1);
}

TEST_CASE("a destroyed gradient reducer leaves plain parameters, and another one may be created") {
  const Grads expected = truth(2, make_net, plain_step);
  run_threads(2, [&](const Group& group) {
    auto net = built(make_net);
    { const GradientReducer gradient_reducer(group, named(net)); }
    plain_step(net, group.rank());
    CHECK_FALSE(bit_equal(group, {net->first->weight.grad()}));
    net->zero_grad();
    {
      GradientReducer gradient_reducer(group, named(net), small_buckets());
      plain_step(net, group.rank());
    }
    CHECK(same(gradients_of(net->parameters()), expected));
    net->zero_grad();
    const GradientReducer gradient_reducer(group, named(net), small_buckets());
    plain_step(net, group.rank());
    CHECK(same(gradients_of(net->parameters()), expected));
  });
}

TEST_CASE("a second gradient reducer on a parameter is refused by its name until the first is destroyed") {
  const Grads expected = truth(2, make_net, plain_step);
  run_threads(2, [&](const Group& group) {
    auto net = built(make_net);
    GradientReducer first(group.duplicate(), named(net));
    CHECK(text_of([&] {
            const GradientReducer second(group.duplicate(), {{"twin", net->second->bias}});
          }) ==
          "prepare: the gradient of parameter twin is averaged already, through another Accelerator or "
          "DistributedDataParallel that prepared its module; use that one, or end it first (free_memory(), or drop its "
          "prepared model)");
    first.retire();
    const GradientReducer second(group.duplicate(), named(net), small_buckets());
    plain_step(net, group.rank());
    CHECK(same(gradients_of(net->parameters()), expected));
  });
}

TEST_CASE("zeroing in parts is sufficient after an incomplete reduction") {
  run_threads(2, [](const Group& group) {
    GradientReducerOptions options = small_buckets();
    options.static_graph = true;
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net), options);
    net->forward(batch(group.rank())).sum().backward();
    gradient_reducer.zero_all();
    CHECK_THROWS(plain_step(net, group.rank()));
    gradient_reducer.zero(net->first->parameters());
    CHECK(gradient_reducer.first_unreduced());
    gradient_reducer.zero(net->second->parameters());
    gradient_reducer.zero(net->extra->parameters());
    CHECK_FALSE(gradient_reducer.first_unreduced());
    net->forward(batch(group.rank())).sum().backward();
    gradient_reducer.before_step();
  });
}

TEST_CASE("a parameter that is not a leaf is refused by name") {
  run_threads(2, [](const Group& group) {
    const at::Tensor leaf = torch::ones({2}, torch::requires_grad());
    CHECK(text_of([&] {
            const GradientReducer gradient_reducer(group, {{"scaled", leaf * 2}});
          }) ==
          "prepare: parameter scaled is the result of an operation, not a leaf: no gradient would be kept for it; "
          "register the tensor it was computed from");
  });
}

TEST_CASE("the constructor throws the same error on every rank if the models differ") {
  run_threads(2, [](const Group& group) {
    auto net = built([] { return torch::nn::Linear(4, 3); });
    if (group.rank() == 1) net = built([] { return torch::nn::Linear(5, 3); });
    CHECK(
        text_of([&] { const GradientReducer gradient_reducer(group, named(net)); }) ==
        "prepare: parameter 0 of the model is weight [3, 4] Float on rank 0, weight [3, 5] Float on rank 1; build the "
        "same model on every rank");
  });
}

TEST_CASE("the constructor refuses a bucket cap of zero bytes") {
  run_threads(2, [](const Group& group) {
    auto net = built(make_net);
    CHECK(text_of([&] { const GradientReducer gradient_reducer(group, named(net), {.buckets = {.cap_bytes = 0}}); }) ==
          "plan_buckets: cap_bytes is 0, must be at least 1");
  });
}
