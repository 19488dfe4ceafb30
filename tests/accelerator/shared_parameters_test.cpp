// SPDX-License-Identifier: Apache-2.0
// A parameter in several prepared objects is averaged once, or refused.
#include "tests/testing.hpp"
//
#include "tests/accelerator/ranks.hpp"

using accelerate::Accelerator;

namespace {

// 1, 2, ...: the mean over P ranks is (P + 1) / 2.
double own_factor(Accelerator& accelerator) { return static_cast<double>(accelerator.process_index()) + 1.0; }
double mean(Accelerator& accelerator) { return (static_cast<double>(accelerator.num_processes()) + 1.0) / 2.0; }
double gradient_of(const torch::Tensor& parameter) { return parameter.grad().item<double>(); }

// out = h * w * x; other models may share the encoder with w.
struct HeadImpl : torch::nn::Module {
  explicit HeadImpl(OneWeight the_encoder) : encoder(register_module("encoder", std::move(the_encoder))) {
    h = register_parameter("h", full(1.0));
  }
  torch::Tensor forward(const torch::Tensor& x) { return h * encoder(x); }
  OneWeight encoder;
  torch::Tensor h;
};
TORCH_MODULE(Head);

// Layers large enough that a bucket is reduced while backward continues.
torch::nn::Sequential deep() {
  static std::mutex one_at_a_time;  // ranks as threads share the generator
  const std::lock_guard lock(one_at_a_time);
  torch::manual_seed(3);
  torch::nn::Sequential net(torch::nn::Linear(64, 64), torch::nn::Linear(64, 64), torch::nn::Linear(64, 1));
  net->to(torch::kDouble);
  return net;
}
torch::Tensor inputs(double value) { return torch::full({2, 64}, value, torch::kDouble); }

}  // namespace

TEST_CASE("an encoder of two models gets the mean of both models' gradients in every step") {
  on_ranks(2, [](Accelerator& accelerator) {
    OneWeight encoder(1.0);
    Head first(encoder), second(encoder);
    torch::optim::SGD sgd({encoder->w, first->h, second->h}, 0.0);
    auto [one, two, optimizer] = accelerator.prepare(first, second, sgd);
    for (int step = 0; step < 10; ++step) {
      optimizer.zero_grad();
      accelerator.backward(one(full(own_factor(accelerator))).sum() + two(full(own_factor(accelerator))).sum());
      CHECK(gradient_of(encoder->w) == doctest::Approx(2 * mean(accelerator)));
      CHECK(gradient_of(second->h) == doctest::Approx(mean(accelerator)));
      optimizer.step();
      optimizer.zero_grad();
      accelerator.backward(two(full(own_factor(accelerator))).sum());  // the other model's reducer has the encoder
      CHECK(gradient_of(encoder->w) == doctest::Approx(mean(accelerator)));
      CHECK_FALSE(first->h.grad().defined());
      optimizer.step();
    }
    CHECK(accelerator.clip_grad_norm_(two, 100.0).item<double>() ==
          doctest::Approx(std::sqrt(2.0) * mean(accelerator)));
  });
}

TEST_CASE("a model and its submodule can both be prepared, in windows too") {
  for (const bool part_first : {false, true}) {
    on_ranks(
        2,
        [part_first](Accelerator& accelerator) {
          Head net(OneWeight(1.0 + static_cast<double>(accelerator.process_index())));
          if (part_first) (void)accelerator.prepare(net->encoder);
          auto [whole, part, optimizer] =
              accelerator.prepare(net, net->encoder, torch::optim::SGD(net->parameters(), 0.0));
          CHECK(net->encoder->w.item<double>() == 1.0);  // equal, independent of which reducer averages it
          for (int micro = 1; micro <= 6; ++micro) {
            auto window = accelerator.accumulate(whole, part);
            accelerator.backward((whole(full(own_factor(accelerator))) + part(full(own_factor(accelerator)))).sum());
            if (micro % 2 == 0) {
              CHECK(gradient_of(net->encoder->w) == doctest::Approx(2 * mean(accelerator)));
              CHECK(gradient_of(net->h) == doctest::Approx(mean(accelerator)));
            }
            optimizer.step();
            optimizer.zero_grad();
          }
        },
        {.gradient_accumulation_steps = 2});
  }
}

TEST_CASE("no_sync() applies to one of two models that share a parameter") {
  on_ranks(2, [](Accelerator& accelerator) {
    OneWeight encoder(1.0);
    Head first(encoder), second(encoder);
    auto [one, two, optimizer] =
        accelerator.prepare(first, second, torch::optim::SGD({encoder->w, first->h, second->h}, 0.0));
    // The model with the encoder's reducer stays local; the other model's synchronised forward averages the encoder.
    {
      auto local = accelerator.no_sync(one);
      accelerator.backward(one(full(own_factor(accelerator))).sum());
      CHECK(gradient_of(encoder->w) == own_factor(accelerator));
    }
    accelerator.backward(two(full(own_factor(accelerator))).sum());
    CHECK(gradient_of(encoder->w) == doctest::Approx(2 * mean(accelerator)));
    optimizer.step();
    optimizer.zero_grad();
    // In the other order it is averaged early, with the same result.
    {
      auto local = accelerator.no_sync(two);
      accelerator.backward(two(full(own_factor(accelerator))).sum());
      CHECK(gradient_of(second->h) == own_factor(accelerator));
    }
    accelerator.backward(one(full(own_factor(accelerator))).sum() + two(full(own_factor(accelerator))).sum());
    CHECK(gradient_of(encoder->w) == doctest::Approx(3 * mean(accelerator)));
    CHECK(gradient_of(second->h) == doctest::Approx(2 * mean(accelerator)));
    optimizer.step();
  });
}

TEST_CASE("a join of one model includes the gradient reducer of its shared parameters") {
  on_ranks(2, [](Accelerator& accelerator) {
    OneWeight encoder(1.0);
    Head first(encoder), second(encoder);
    auto [one, two, optimizer] = accelerator.prepare(first, second, torch::optim::SGD({encoder->w, second->h}, 0.1));
    {
      auto join = accelerator.join_uneven_inputs(two);
      for (int64_t step = 0; step <= accelerator.process_index(); ++step) {
        optimizer.zero_grad();
        accelerator.backward(two(full(1.0)).sum());
        optimizer.step();
      }
    }
    const auto all = accelerator.gather(torch::cat({encoder->w, second->h}).detach().reshape({1, 2}));
    CHECK(all[0].equal(all[1]));
    CHECK(encoder->w.item<double>() < 0.9);  // both steps counted
  });
}

TEST_CASE("a module that is prepared again after free_memory() is averaged, also through its old handle") {
  on_ranks(2, [](Accelerator& accelerator) {
    auto net = deep();
    torch::optim::SGD sgd(net->parameters(), 0.0);
    auto [old, first] = accelerator.prepare(net, sgd);
    accelerator.backward(old(inputs(1.0)).sum());
    first.zero_grad();
    accelerator.free_memory();
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto slope = torch::autograd::grad({net->forward(inputs(1.0)).sum()}, {net->parameters()[0]})[0];
    for (int step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      accelerator.backward((step % 2 == 0 ? model : old)(inputs(own_factor(accelerator) + step)).sum());
      CHECK(torch::allclose(net->parameters()[0].grad(), slope * (mean(accelerator) + step), 1e-12));
      optimizer.step();
    }
  });
}

TEST_CASE("a second Accelerator refuses a module until free_memory() of the first") {
  on_ranks(2, [](Accelerator& accelerator) {
    Accelerator other({.cpu = true});
    OneWeight net;
    auto model = accelerator.prepare(net);
    CHECK_THROWS_WITH((void)other.prepare(net),
                      doctest::Contains("prepare: the gradient of parameter w is averaged already, through another "
                                        "Accelerator or DistributedDataParallel that prepared its module; use that "
                                        "one, or end it first (free_memory(), or drop its prepared model)"));
    accelerator.free_memory();
    auto again = other.prepare(net);
    other.backward(again(full(own_factor(other))).sum());
    CHECK(gradient_of(net->w) == mean(other));
  });
}

TEST_CASE("a parameter that is unfrozen after prepare() trains once the module is prepared again") {
  on_ranks(2, [](Accelerator& accelerator) {
    Head net(OneWeight(1.0));
    net->encoder->w.requires_grad_(false);
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
    CHECK(accelerator.prepare(net) == model);
    accelerator.backward(model(full(own_factor(accelerator))).sum());
    optimizer.step();
    optimizer.zero_grad();
    CHECK(net->h.item<double>() == 1.0 - mean(accelerator));
    net->encoder->w.requires_grad_(true);
    accelerator.backward(model(full(own_factor(accelerator))).sum());
    CHECK_THROWS_WITH(optimizer.step(), doctest::Contains("give its module to prepare() after requires_grad is set, "
                                                          "again if it changed since"));
    net->zero_grad();
    auto again = accelerator.prepare(net);
    CHECK_FALSE(again == model);
    accelerator.backward(again(full(own_factor(accelerator))).sum());
    optimizer.step();
    CHECK(net->encoder->w.item<double>() == doctest::Approx(1.0 + 0.5 * mean(accelerator)));
  });
}

TEST_CASE("a frozen model starts as rank 0's, and ranks must have equal models") {
  on_ranks(2, [](Accelerator& accelerator) {
    OneWeight net(10.0 + own_factor(accelerator));
    net->w.requires_grad_(false);
    auto model = accelerator.prepare(net);
    CHECK(net->w.item<double>() == 11.0);
    torch::nn::Linear other(3, 4 + accelerator.process_index());
    for (auto& parameter : other->parameters()) parameter.requires_grad_(false);
    CHECK_THROWS_WITH((void)accelerator.prepare(other),
                      doctest::Contains("parameter 0 of the model is weight [4, 3] Float, frozen on rank 0, weight "
                                        "[5, 3] Float, frozen on rank 1"));
  });
}

TEST_CASE("a weight that two layers share is clipped once, in any list of parameters") {
  for (const int64_t ranks : {1, 2}) {
    on_ranks(ranks, [](Accelerator& accelerator) {
      torch::nn::Linear layer(torch::nn::LinearOptions(4, 4).bias(false));
      torch::nn::Sequential net(layer, layer);
      auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(layer->parameters(), 0.1));
      REQUIRE(net->parameters().size() == 2);
      CHECK(model.parameters().size() == 1);
      for (const bool by_model : {true, false}) {
        CAPTURE(by_model);
        optimizer.zero_grad();
        accelerator.backward(model(torch::ones({2, 4})).sum() * 100);
        const double norm = layer->weight.grad().norm().item<double>();
        const auto reported =
            by_model ? accelerator.clip_grad_norm_(model, 1.0) : accelerator.clip_grad_norm_(net->parameters(), 1.0);
        CHECK(reported.item<double>() == doctest::Approx(norm).epsilon(1e-5));
        CHECK(layer->weight.grad().norm().item<double>() == doctest::Approx(1.0).epsilon(1e-4));
      }
    });
  }
}
