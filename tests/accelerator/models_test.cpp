// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <cmath>
#include <limits>

#include "tests/accelerator/ranks.hpp"
#include "tests/gradient/operators.hpp"

using accelerate::Accelerator;

namespace {
double rank_of(Accelerator& accelerator) { return static_cast<double>(accelerator.process_index()); }

// w * x * scale, where scale is a buffer that forward may set to x.
struct ScaledByInputImpl : torch::nn::Module {
  ScaledByInputImpl() {
    w = register_parameter("w", full(1.0));
    scale = register_buffer("scale", full(0.0));
  }
  torch::Tensor forward(const torch::Tensor& x, bool update) {
    if (update) {
      const torch::NoGradGuard no_grad;
      scale.copy_(x);
    }
    return w * x * scale;
  }
  torch::Tensor w, scale;
};
TORCH_MODULE(ScaledByInput);
}  // namespace

TEST_CASE("prepare() broadcasts rank 0's parameters and buffers") {
  on_ranks(3, [](Accelerator& accelerator) {
    OneWeight net(10.0 + rank_of(accelerator));
    net->register_buffer("mean", full(rank_of(accelerator)));
    auto model = accelerator.prepare(net);
    CHECK(net->w.item<double>() == 10.0);
    CHECK(net->named_buffers()["mean"].item<double>() == 0.0);
  });
}

TEST_CASE("the forward after a synchronised one broadcasts rank 0's buffers unless disabled") {
  for (const bool on : {true, false}) {
    on_ranks(2,
             [on](Accelerator& accelerator) {
               torch::nn::BatchNorm1d norm(1);
               norm->to(torch::kDouble);
               auto model = accelerator.prepare(norm);
               model(torch::full({2, 1}, rank_of(accelerator), torch::kDouble));
               const double mine = norm->running_mean.item<double>();
               CHECK(mine == doctest::Approx(0.1 * rank_of(accelerator)));
               model(torch::full({2, 1}, 0.0, torch::kDouble));
               const double expected = on ? 0.0 : 0.9 * mine;
               CHECK(norm->running_mean.item<double>() == doctest::Approx(expected));
             },
             {.broadcast_buffers = on});
  }
}

TEST_CASE("two training forwards of a model with BatchNorm before one backward, on one rank and on two") {
  for (const int64_t ranks : {1, 2}) {
    on_ranks(ranks, [](Accelerator& accelerator) {
      torch::nn::Sequential net(torch::nn::BatchNorm1d(2), torch::nn::BatchNorm1d(2));
      net->to(torch::kDouble);
      auto discriminator = accelerator.prepare(net);
      const auto real = torch::tensor({{1.0, 2.0}, {3.0, 5.0}}, torch::kDouble) + rank_of(accelerator);
      for (int step = 0; step < 3; ++step) {
        net->zero_grad();
        accelerator.backward((discriminator(real).pow(3) - discriminator(real * 2).pow(2)).sum());
        CHECK(net->parameters()[0].grad().defined());
      }
    });
  }
}

TEST_CASE("without broadcast_buffers prepare() keeps each rank's buffers, as in PyTorch") {
  for (const bool on : {true, false}) {
    on_ranks(2,
             [on](Accelerator& accelerator) {
               torch::nn::BatchNorm1d norm(1);
               norm->to(torch::kDouble);
               norm->running_mean.fill_(5.0 + rank_of(accelerator));
               auto model = accelerator.prepare(norm);
               CHECK(norm->running_mean.item<double>() == (on ? 5.0 : 5.0 + rank_of(accelerator)));
               CHECK(norm->weight.item<double>() == 1.0);
             },
             {.broadcast_buffers = on});
  }
}

TEST_CASE("two forwards, the first writes a buffer: an error with broadcast_buffers, correct without") {
  for (const bool on : {true, false}) {
    on_ranks(2,
             [on](Accelerator& accelerator) {
               ScaledByInput net;
               auto model = accelerator.prepare(net);
               const double x = rank_of(accelerator) + 2.0;  // 2 on rank 0, 3 on rank 1
               const auto first = model(full(x), true);
               const auto loss = first + model(full(1.0), false);
               if (on && accelerator.process_index() == 1) {
                 CHECK_THROWS_WITH(accelerator.backward(loss.sum()),
                                   doctest::Contains("modified by an inplace operation"));
                 accelerator.backward(net->forward(full(1.0), false).sum());  // the reduction for which rank 0 waits
               } else {
                 accelerator.backward(loss.sum());
                 // Rank 0: x * x + x. Rank 1: 9 + 3 in the second case, 1 * rank 0's 2 in the first.
                 CHECK(net->w.grad().item<double>() == (on ? (6.0 + 2.0) / 2 : (6.0 + 12.0) / 2));
               }
             },
             {.broadcast_buffers = on});
  }
}

TEST_CASE("models that differ between ranks are refused on every rank") {
  on_ranks(2, [](Accelerator& accelerator) {
    torch::nn::Linear net(3, 4 + accelerator.process_index());
    CHECK_THROWS_WITH((void)accelerator.prepare(net), doctest::Contains("weight"));
  });
}

TEST_CASE("a GAN: discriminator and generator in one Accelerator, each stepped by its own optimizer") {
  on_ranks(2, [](Accelerator& accelerator) {
    OneWeight generator_net(1.0), discriminator_net(2.0);
    auto [generator, discriminator, generator_step, discriminator_step] =
        accelerator.prepare(generator_net, discriminator_net, torch::optim::SGD(generator_net->parameters(), 1.0),
                            torch::optim::SGD(discriminator_net->parameters(), 1.0));
    const double x = rank_of(accelerator) + 1.0;  // 1 and 2, mean 1.5
    // The discriminator learns; the generator's graph is cut.
    accelerator.backward(discriminator(generator(full(x)).detach()).sum());
    CHECK(discriminator_net->w.grad().item<double>() == doctest::Approx(1.5));
    CHECK_FALSE(generator_net->w.grad().defined());
    discriminator_step.step();
    discriminator_step.zero_grad();
    CHECK(discriminator_net->w.item<double>() == doctest::Approx(0.5));
    // The generator learns through the discriminator.
    accelerator.backward(discriminator(generator(full(x))).sum());
    CHECK(generator_net->w.grad().item<double>() == doctest::Approx(0.75));
    generator_step.step();
    generator_step.zero_grad();
    discriminator_step.zero_grad();
    CHECK(generator_net->w.item<double>() == doctest::Approx(0.25));
  });
}

TEST_CASE("a rank without the model in its graph joins the others' reduction") {
  on_ranks(3, [](Accelerator& accelerator) {
    OneWeight first_net(1.0), second_net(1.0);
    auto [first, second] = accelerator.prepare(first_net, second_net);
    auto loss = first(full(1.0)).sum();
    if (accelerator.is_main_process()) loss = loss + second(full(6.0)).sum();
    accelerator.backward(loss);
    CHECK(first_net->w.grad().item<double>() == doctest::Approx(1.0));
    CHECK(second_net->w.grad().item<double>() == doctest::Approx(2.0));
  });
}

TEST_CASE("a plain backward is reduced too, through either handle") {
  on_ranks(2, [](Accelerator& accelerator) {
    OneWeight net;
    auto model = accelerator.prepare(net);
    model->forward(full(rank_of(accelerator))).sum().backward();
    CHECK(net->w.grad().item<double>() == doctest::Approx(0.5));
    net->forward(full(rank_of(accelerator))).sum().backward();
    CHECK(net->w.grad().item<double>() == doctest::Approx(1.0));
  });
}

TEST_CASE("a model for evaluation is never reduced") {
  on_ranks(2, [](Accelerator& accelerator) {
    OneWeight net;
    auto model = accelerator.prepare_model(net, /*evaluation_mode=*/true);
    model(full(rank_of(accelerator))).sum().backward();
    CHECK(net->w.grad().item<double>() == rank_of(accelerator));
  });
}

TEST_CASE("clipping uses the reduced gradients and waits for the end of a window") {
  on_ranks(2,
           [](Accelerator& accelerator) {
             OneWeight net;
             auto model = accelerator.prepare(net);
             for (int micro = 1; micro <= 2; ++micro) {
               auto window = accelerator.accumulate(model);
               accelerator.backward(model(full(4.0 * (rank_of(accelerator) + 1))).sum());
               const auto norm = accelerator.clip_grad_norm_(model.parameters(), 1.0);
               if (micro == 1) CHECK(net->w.grad().item<double>() == doctest::Approx(2.0 * (rank_of(accelerator) + 1)));
               if (micro == 2) {
                 CHECK(norm.item<double>() == doctest::Approx(6.0));
                 CHECK(net->w.grad().item<double>() == doctest::Approx(1.0).epsilon(1e-4));
               }
             }
             accelerator.clip_grad_value_(model.parameters(), 0.25);
             CHECK(net->w.grad().item<double>() == doctest::Approx(0.25));
           },
           {.gradient_accumulation_steps = 2});
}

TEST_CASE("clipping a prepared model's buckets equals clipping its parameters one by one") {
  for (const int64_t ranks : {1, 2}) {
    on_ranks(ranks, [](Accelerator& accelerator) {
      std::vector<torch::Tensor> values, slopes;
      for (const int64_t n : {3, 1, 20}) {
        values.push_back(torch::zeros({n}, torch::dtype(torch::kDouble).requires_grad(true)));
        slopes.push_back(torch::sin(torch::arange(n, torch::kDouble) * static_cast<double>(n)) * 3);
      }
      torch::nn::ParameterList net(values[0], values[1], values[2]);
      auto model = accelerator.prepare(net);
      const std::vector<torch::Tensor> parameters = model.parameters();
      const auto slope = torch::cat(slopes);
      const auto clipped = [&](const auto& clip) {
        net->zero_grad();
        torch::Tensor loss = torch::zeros({}, torch::kDouble);
        for (size_t i = 0; i < 3; ++i) loss = loss + (parameters[i] * slopes[i]).sum();
        accelerator.backward(loss);
        clip();
        return torch::cat({parameters[0].grad(), parameters[1].grad(), parameters[2].grad()});
      };
      const auto stranger = torch::zeros({1}, torch::requires_grad());  // with it, no reducer manages exactly this list
      stranger.mutable_grad() = torch::zeros({1});
      auto list = parameters;
      list.push_back(stranger);
      auto twice = parameters;
      twice[0] = twice[1];  // the right number of parameters, but with a duplicate
      const auto by_value = slope.clamp(-0.5, 0.5);
      for (int round = 0; round < 2; ++round) {  // before and after the layout of the buckets
        CHECK(clipped([&] { accelerator.clip_grad_value_(model, 0.5); }).equal(by_value));
        CHECK(clipped([&] { accelerator.clip_grad_value_(list, 0.5); }).equal(by_value));
        CHECK(clipped([&] {
                accelerator.clip_grad_value_(twice, 0.5);
              }).equal(torch::cat({slopes[0], by_value.slice(0, 3)})));
        const auto by_norm = slope / slope.norm();
        CHECK(clipped([&] { accelerator.clip_grad_norm_(model, 1.0); }).allclose(by_norm, 1e-6));
        CHECK(clipped([&] { accelerator.clip_grad_norm_(list, 1.0); }).allclose(by_norm, 1e-6));
      }
    });
  }
}

TEST_CASE("clipping within a window changes nothing, an infinite gradient included") {
  Accelerator accelerator({.cpu = true, .gradient_accumulation_steps = 2});
  OneWeight net, other;
  torch::nn::ModuleList both(net, other);
  auto model = accelerator.prepare(both);
  auto window = accelerator.accumulate(model);
  accelerator.backward((net(full(std::numeric_limits<double>::infinity())) + other(full(1.0))).sum());
  CHECK(std::isinf(accelerator.clip_grad_norm_(model, 1.0).item<double>()));
  accelerator.clip_grad_value_(model, 0.1);
  CHECK(other->w.grad().item<double>() == 0.5);
}

TEST_CASE("the Accelerator's bucket options reach the gradient reducer") {
  on_ranks(2,
           [](Accelerator& accelerator) {
             torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
             auto model = accelerator.prepare(net);
             for (int step = 0; step < 2; ++step) accelerator.backward(model(torch::ones({1, 4})).sum());
             CHECK(model.core().gradient_reducer()->plan().buckets.size() == 3);
           },
           {.buckets = {.cap_bytes = 80, .first_cap_bytes = 80}});
}

TEST_CASE("N ranks with batch B train as one rank with batch N*B, in float64, with equal ranks") {
  const auto train = [](int64_t ranks) {
    std::vector<torch::Tensor> results(static_cast<size_t>(ranks));
    std::mutex building;
    on_ranks(ranks, [&](Accelerator& accelerator) {
      torch::nn::Sequential net{nullptr};
      {
        const std::lock_guard lock(building);
        torch::manual_seed(5);
        net = torch::nn::Sequential(torch::nn::Linear(4, 8), torch::nn::Tanh(), torch::nn::Linear(8, 1));
      }
      net->to(torch::kDouble);
      torch::optim::AdamW adamw(net->parameters(), 0.01);
      const auto data = torch::sin(torch::arange(24 * 4, torch::kDouble)).reshape({24, 4});
      auto [model, optimizer, loader] = accelerator.prepare(
          net, adamw,
          accelerate::data::from_tensors(data, data.sum(1, true), {.batch_size = 12 / accelerator.num_processes()}));
      for (int epoch = 0; epoch < 25; ++epoch) {
        for (auto& [input, target] : loader) {
          accelerator.backward(torch::mse_loss(model(input), target));
          optimizer.step();
          optimizer.zero_grad();
        }
      }
      results[static_cast<size_t>(accelerator.process_index())] =
          torch::nn::utils::parameters_to_vector(net->parameters()).detach().clone();
    });
    for (const auto& result : results) CHECK(result.equal(results[0]));
    return results[0];
  };
  const auto one = train(1);
  CHECK((one - train(2)).abs().max().item<double>() < 1e-12);
  CHECK((one - train(4)).abs().max().item<double>() < 1e-12);
}

TEST_CASE("a model that changes its dtype after prepare() trains, with the same handle or prepared again") {
  for (const bool again : {false, true}) {
    on_ranks(2, [again](Accelerator& accelerator) {
      OneWeight net(1.0);
      auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
      accelerator.backward(model(full(rank_of(accelerator))).sum());
      optimizer.zero_grad();
      model->to(torch::kFloat);
      auto now = accelerator.prepare(net);
      CHECK_FALSE(now == model);
      CHECK(accelerator.prepare(net) == now);
      if (!again) {
        model->to(torch::kDouble);
        now = accelerator.prepare(net);
        model->to(torch::kFloat);  // without an optimizer
      }
      for (int step = 0; step < 2; ++step) {
        accelerator.backward(now(full(rank_of(accelerator)).to(torch::kFloat)).sum());
        CHECK(net->w.grad().item<double>() == 0.5);
        optimizer.step();
        optimizer.zero_grad();
      }
      CHECK(net->w.item<double>() == 0.0);
    });
  }
}

TEST_CASE("an evaluation model can exist beside the training model of the same module") {
  on_ranks(2, [](Accelerator& accelerator) {
    OneWeight net(1.0);
    auto model = accelerator.prepare(net);
    auto evaluated = accelerator.prepare_model(net, /*evaluation_mode=*/true);
    CHECK_FALSE(evaluated == model);
    CHECK(accelerator.prepare(net) == model);
    accelerator.backward(model(full(rank_of(accelerator))).sum());
    CHECK(net->w.grad().item<double>() == 0.5);
  });
}

TEST_CASE("error_if_nonfinite names the parameter on every rank and scales nothing; otherwise clipping continues") {
  for (const int64_t ranks : {1, 2}) {
    on_ranks(ranks, [](Accelerator& accelerator) {
      OneWeight net;
      auto model = accelerator.prepare(net);
      const auto bad = accelerator.is_main_process() ? std::numeric_limits<double>::infinity() : 1.0;
      accelerator.backward(model(full(bad)).sum());
      CHECK_THROWS_WITH(
          accelerator.clip_grad_norm_(model, 1.0, 2.0, /*error_if_nonfinite=*/true),
          doctest::Contains("clip_grad_norm_: the norm of the gradients is inf: 1 of 1 gradients are not "
                            "finite, the first that of w in 1 of its 1 elements; lower the learning rate, "
                            "or switch error_if_nonfinite off to clip by it anyway"));
      CHECK(std::isinf(net->w.grad().item<double>()));
      CHECK(std::isinf(accelerator.clip_grad_norm_(model, 1.0).item<double>()));
      CHECK_THROWS_WITH(
          accelerator.clip_grad_norm_(model, -1.0),
          doctest::Contains("clip_grad_norm_: max_norm is -1, must be at least 0; infinity only measures"));
    });
  }
}

TEST_CASE("invalid clipping limits are refused in each micro-batch of a window") {
  Accelerator accelerator({.cpu = true, .gradient_accumulation_steps = 2});
  OneWeight net;
  auto model = accelerator.prepare(net);
  auto window = accelerator.accumulate(model);
  accelerator.backward(model(full(1.0)).sum());
  CHECK_FALSE(accelerator.sync_gradients());
  CHECK_THROWS_WITH(accelerator.clip_grad_norm_(model, -1.0),
                    "clip_grad_norm_: max_norm is -1, must be at least 0; infinity only measures");
  CHECK_THROWS_WITH(accelerator.clip_grad_value_(model, -0.5), "clip_grad_value_: value is -0.5, must be at least 0");
}

TEST_CASE("zero_grad(false) leaves zeros as gradients, on one rank and on several") {
  for (const int64_t ranks : {1, 2}) {
    on_ranks(ranks, [](Accelerator& accelerator) {
      OneWeight net(1.0);
      auto [model, optimizer] =
          accelerator.prepare(net, torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.5).weight_decay(1)));
      for (int step = 0; step < 2; ++step) {
        accelerator.backward(model(full(rank_of(accelerator))).sum());
        optimizer.zero_grad(/*set_to_none=*/false);
        CHECK(net->w.grad().item<double>() == 0);
      }
      optimizer.step();  // weight decay acts on zeros
      CHECK(net->w.item<double>() == 0.5);
    });
  }
}

TEST_CASE("zero_grad(false) is one fill per bucket, for any number of parameters") {
  struct Layout {
    accelerate::gradient::BucketOptions buckets;
    int64_t count;  // number of buckets for six parameters
  };
  for (const Layout& layout : std::vector<Layout>{{.buckets = {}, .count = 1},
                                                  {.buckets = {.first_cap_bytes = 1}, .count = 2},
                                                  {.buckets = {.cap_bytes = 1, .first_cap_bytes = 1}, .count = 6}}) {
    on_ranks(2,
             [&](Accelerator& accelerator) {
               CAPTURE(layout.count);
               torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
               auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
               for (int step = 0; step < 2; ++step) {
                 accelerator.backward(model(torch::ones({2, 4})).sum());
                 auto called = gradient_testing::operators_of(
                     [&, &optimizer = optimizer] { optimizer.zero_grad(/*set_to_none=*/false); });
                 CHECK(called["aten::zero_"] == layout.count);
                 for (const auto& parameter : net->parameters()) {
                   CHECK(parameter.grad().abs().max().item<double>() == 0);
                 }
               }
             },
             {.buckets = layout.buckets});
  }
}

TEST_CASE("evaluation with averaged weights is equal on all ranks") {
  on_ranks(2, [](Accelerator& accelerator) {
    OneWeight net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
    accelerate::optim::ExponentialMovingAverage ema(model, {.decay = 0.5});
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      accelerator.backward(model(full(-2.0 * rank_of(accelerator))).sum());  // mean -1: w is 1, then 2
      optimizer.step();
      ema.update();
    }
    {
      auto averaged = ema.average_parameters();
      CHECK(model(full(1.0)).item<double>() == 1.5);
    }
    CHECK(model(full(1.0)).item<double>() == 2.0);
  });
}
