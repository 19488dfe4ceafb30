// SPDX-License-Identifier: Apache-2.0
// Optimizers that step on gradients of a pending step of a prepared optimizer: with the loss scale of fp16, or in a
// window.
#include "tests/testing.hpp"
//
#include "tests/accelerator/ranks.hpp"
#include "tests/temporary_folder.hpp"

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;

namespace {

AcceleratorOptions scaled_by_1024() {
  return {.cpu = true, .mixed_precision = accelerate::Precision::fp16, .grad_scaler = {.init_scale = 1024.0}};
}

torch::nn::Linear three_of_eight() {
  torch::manual_seed(1);
  return torch::nn::Linear(8, 3);
}

torch::Tensor loss_of_batch(const torch::Tensor& logits) {
  return torch::cross_entropy_loss(logits, torch::arange(4) % 3);
}

template <typename Stock>
void refuses_stock_steps(const std::function<Stock(const std::vector<at::Tensor>&)>& make) {
  for (const int64_t ranks : {1, 2}) {
    for (const bool prepared : {true, false}) {
      for (const bool by_module : {true, false}) {
        CAPTURE(ranks);
        CAPTURE(prepared);
        CAPTURE(by_module);
        on_ranks(
            ranks,
            [&](Accelerator& accelerator) {
              auto net = three_of_eight();
              Stock stock = make(net->parameters());
              torch::optim::SGD idle({torch::zeros({1}, torch::requires_grad())}, 0.1);
              auto model = accelerator.prepare(net);
              auto optimizer = accelerator.prepare(idle);
              auto of_net = prepared ? std::optional(accelerator.prepare(stock)) : std::nullopt;
              const auto step = [&] {
                by_module ? net->zero_grad() : of_net ? of_net->zero_grad() : stock.zero_grad();
                accelerator.backward(loss_of_batch(model(torch::ones({4, 8}))));
                stock.step();
              };
              step();
              const std::string call = prepared && !by_module ? "optimizer.zero_grad" : "backward";
              const auto text = fmt::format(
                  "[rank {} of {}, {}] {}: parameter weight changed while its gradient carried the loss scale of fp16 "
                  "(1024): an optimizer stepped that was not prepared, or the one behind a prepared optimizer; step "
                  "what prepare() returned. Before the program itself writes to parameters, zero their gradients with "
                  "optimizer.zero_grad(), or call unscale_gradients()",
                  accelerator.process_index(), ranks, accelerator.place().host, call);
              CHECK_THROWS_WITH(step(), text.c_str());
            },
            scaled_by_1024());
      }
    }
  }
}

/// A loop of two steps that the library must accept; calls between() after each backward.
template <typename Between>
void accepts(const Between& between) {
  for (const int64_t ranks : {1, 2}) {
    CAPTURE(ranks);
    on_ranks(
        ranks,
        [&](Accelerator& accelerator) {
          auto net = three_of_eight();
          torch::optim::SGD sgd(net->parameters(), 0.1);
          auto model = accelerator.prepare(net);
          auto optimizer = accelerator.prepare(sgd);
          for (int i = 0; i < 3; ++i) {
            accelerator.backward(loss_of_batch(model(torch::ones({4, 8}))));
            CHECK_NOTHROW(between(accelerator, net, optimizer));
          }
        },
        scaled_by_1024());
  }
}

void shrink(const torch::nn::Linear& net) {
  const torch::NoGradGuard no_grad;
  net->weight.mul_(0.5);
}

/// Two networks under one loss. The optimizer of the body steps first. `after` then gets the stock optimizer of the
/// head, which is prepared too.
template <typename Stock>
void step_of_body_first(const Stock& make, const std::function<void(torch::optim::Optimizer&)>& after, bool refused) {
  Accelerator accelerator(scaled_by_1024());
  auto body = three_of_eight();
  torch::nn::Linear head(3, 3);
  auto stock = make(head->parameters());
  auto [model, of_body, of_head] =
      accelerator.prepare(torch::nn::Sequential(body, head), torch::optim::SGD(body->parameters(), 0.1), stock);
  for (int i = 0; i < 4; ++i) {
    accelerator.backward(loss_of_batch(model(torch::ones({4, 8}))));
    of_body.step();
    of_body.zero_grad();
    after(stock);
    if (refused) {
      CHECK_THROWS_WITH(accelerator.backward(loss_of_batch(model(torch::ones({4, 8})))),
                        doctest::Contains("backward: parameter 1.weight changed while its gradient carried"));
      accelerator.drop_gradients();
      continue;
    }
    CHECK_NOTHROW(accelerator.backward(loss_of_batch(model(torch::ones({4, 8})))));
    of_head.step();
    of_head.zero_grad();
    of_body.zero_grad();
  }
}

template <typename Make>
void finds_its_own_step(const Make& make) {
  const auto clamp = [](torch::optim::Optimizer& stock) {
    for (const auto& parameter : stock.param_groups().front().params()) parameter.data().clamp_(-0.01, 0.01);
  };
  step_of_body_first(
      make, [](torch::optim::Optimizer& stock) { stock.step(); }, true);
  step_of_body_first(make, clamp, false);
}

}  // namespace

TEST_CASE("with fp16 a stock optimizer's step throws at the next backward or zero_grad(), on 1 and 2 ranks") {
  using namespace torch::optim;
  refuses_stock_steps<SGD>([](const auto& parameters) { return SGD(parameters, 0.1); });
  refuses_stock_steps<SGD>([](const auto& parameters) { return SGD(parameters, SGDOptions(0.1).momentum(0.9)); });
  refuses_stock_steps<Adam>([](const auto& parameters) { return Adam(parameters, 0.1); });
  refuses_stock_steps<AdamW>([](const auto& parameters) { return AdamW(parameters, 0.1); });
  refuses_stock_steps<RMSprop>([](const auto& parameters) { return RMSprop(parameters, 0.1); });
}

TEST_CASE("with fp16 a stock optimizer beside a prepared one is detected in any order") {
  for (const bool stock_first : {true, false}) {
    CAPTURE(stock_first);
    Accelerator accelerator(scaled_by_1024());
    auto body = three_of_eight();
    torch::nn::Linear head(3, 3);
    torch::nn::Sequential net(body, head);
    torch::optim::SGD stock(head->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(body->parameters(), 0.1));
    const auto step = [&, &model = model, &optimizer = optimizer] {
      accelerator.backward(loss_of_batch(model(torch::ones({4, 8}))));
      if (stock_first) stock.step();
      optimizer.step();
      if (!stock_first) stock.step();
      net->zero_grad();
    };
    step();
    CHECK_THROWS_WITH(step(), doctest::Contains("backward: parameter 1.weight changed while its gradient carried"));
  }
}

TEST_CASE("a bypassed optimizer is detected in the step of another prepared optimizer") {
  Accelerator accelerator(scaled_by_1024());
  auto body = three_of_eight();
  torch::nn::Linear head(3, 3);
  torch::optim::SGD stock(head->parameters(), 0.1);
  auto [model, of_body, of_head] =
      accelerator.prepare(torch::nn::Sequential(body, head), torch::optim::SGD(body->parameters(), 0.1), stock);
  accelerator.backward(loss_of_batch(model(torch::ones({4, 8}))));
  stock.step();
  CHECK_THROWS_WITH(of_body.step(),
                    doctest::Contains("optimizer.step: parameter 1.weight changed while its gradient carried"));
}

TEST_CASE("a bypassed optimizer is detected after another one's step, a clamp is allowed") {
  using namespace torch::optim;
  finds_its_own_step([](const auto& all) { return SGD(all, SGDOptions(0.1).momentum(0.9)); });
  finds_its_own_step([](const auto& all) { return Adam(all, 0.1); });
  finds_its_own_step([](const auto& all) { return AdamW(all, 0.1); });
  finds_its_own_step([](const auto& all) { return RMSprop(all, 0.1); });
  finds_its_own_step([](const auto& all) { return Adagrad(all, 0.1); });
}

TEST_CASE("a parameter write in forward counts as no step, a step beside it does") {
  for (const bool fp16 : {true, false}) {
    for (const int64_t ranks : {1, 2}) {
      CAPTURE(fp16);
      CAPTURE(ranks);
      auto options = fp16 ? scaled_by_1024() : AcceleratorOptions{.cpu = true};
      options.gradient_accumulation_steps = 2;
      on_ranks(
          ranks,
          [](Accelerator& accelerator) {
            torch::nn::Sequential net(torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 3).max_norm(0.1)),
                                      torch::nn::Linear(3, 3));
            torch::optim::SGD stock(net->parameters(), 0.1);
            auto [model, optimizer] = accelerator.prepare(net, stock);
            const auto micro_batch = [&, &model = model, &optimizer = optimizer](bool behind) {
              auto window = accelerator.accumulate(model);
              for (int part = 0; part < 2; ++part) {
                accelerator.backward(loss_of_batch(model(torch::tensor({0, 1, 2, 3}))));
              }
              if (behind) stock.step();
              optimizer.step();
              optimizer.zero_grad();
            };
            for (int i = 0; i < 4; ++i) CHECK_NOTHROW(micro_batch(false));
            micro_batch(true);
            CHECK_THROWS_WITH(micro_batch(false), doctest::Contains(" changed w"));
          },
          options);
    }
  }
}

TEST_CASE("with fp16 prepared steps, and steps after an error, continue unchanged") {
  Accelerator accelerator(scaled_by_1024());
  auto net = three_of_eight();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto backward = [&, &model = model] { accelerator.backward(loss_of_batch(model(torch::ones({4, 8})))); };
  backward();
  sgd.step();
  CHECK_THROWS(backward());
  optimizer.zero_grad();
  for (int i = 0; i < 3; ++i) {
    backward();
    optimizer.step();
    if (i == 1) optimizer.zero_grad();
  }
}

TEST_CASE("with fp16 the program may write to parameters after a prepared step and to dropped gradients") {
  accepts([](auto&, auto& net, auto& optimizer) {
    optimizer.step();
    shrink(net);  // a clamp, or a custom average
    optimizer.zero_grad();
  });
  accepts([](auto&, auto& net, auto& optimizer) {
    optimizer.zero_grad();
    shrink(net);
  });
  accepts([](auto& accelerator, auto& net, auto& optimizer) {
    accelerator.unscale_gradients();
    shrink(net);  // the first half of a sharpness-aware step
    optimizer.zero_grad();
  });
  accepts([](auto& accelerator, auto& net, auto&) {
    accelerator.drop_gradients();
    shrink(net);
  });
}

TEST_CASE("with fp16 the weights of a network with unused gradients may be clamped") {
  Accelerator accelerator(scaled_by_1024());
  auto generator = three_of_eight();
  torch::nn::Linear critic(3, 1);
  auto [g, d, of_g, of_d] = accelerator.prepare(generator, critic, torch::optim::SGD(generator->parameters(), 0.1),
                                                torch::optim::SGD(critic->parameters(), 0.1));
  for (int i = 0; i < 3; ++i) {
    of_d.zero_grad();
    accelerator.backward(d(g(torch::ones({4, 8})).detach()).mean());
    of_d.step();
    of_g.zero_grad();
    accelerator.backward(-d(g(torch::ones({4, 8}))).mean());
    of_g.step();
    shrink(critic);
  }
}

TEST_CASE("with fp16 swapped-in averages and loaded weights count as no step") {
  const testing::TemporaryFolder folder;
  for (const int64_t ranks : {1, 2}) {
    CAPTURE(ranks);
    on_ranks(
        ranks,
        [&](Accelerator& accelerator) {
          auto net = three_of_eight();
          auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
          const auto backward = [&, &model = model] {
            accelerator.backward(loss_of_batch(model(torch::ones({4, 8}))));
          };
          accelerate::optim::ExponentialMovingAverage ema(model);
          const auto of_ranks = folder.path / std::to_string(ranks);
          accelerator.save_model(model, of_ranks / "model");
          accelerator.save_state(of_ranks / "state");
          backward();
          optimizer.step();
          optimizer.zero_grad();
          backward();
          { auto averaged = ema.average_parameters(); }
          backward();
          accelerator.load_model(model, of_ranks / "model");
          backward();
          accelerator.load_state(of_ranks / "state");
          backward();
          optimizer.step();
          accelerator.free_memory();
        },
        scaled_by_1024());
  }
}

TEST_CASE("a stock optimizer's step within a window throws at the next backward, on one rank and on several") {
  Accelerator accelerator({.cpu = true, .gradient_accumulation_steps = 4});
  OneWeight net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto model = accelerator.prepare(net);
  const auto micro_batch = [&](bool where_it_ends) {
    auto window = accelerator.accumulate(model);
    accelerator.backward(model(full(1.0)).sum());
    if (where_it_ends && !accelerator.sync_gradients()) return;
    sgd.step();
    sgd.zero_grad();
  };
  for (int micro = 0; micro < 8; ++micro) micro_batch(true);
  CHECK(net->w.item<double>() == -2.0);
  micro_batch(false);
  CHECK_THROWS_WITH(
      micro_batch(false),
      doctest::Contains("backward: parameter w changed within an accumulation window, while its gradient was the sum "
                        "over 1 of 4 micro-batches: an optimizer stepped that was not prepared, or the one behind a "
                        "prepared optimizer; step what prepare() returned, or step where sync_gradients() is true"));
}
