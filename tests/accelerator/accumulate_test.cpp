// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include "tests/accelerator/ranks.hpp"

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using accelerate::ShortWindow;

namespace {

// The weight after each of m micro-batches with dL/dw = 1 and SGD with rate 1, as listed in behaviour.md section 8.
std::vector<double> weights(int64_t micro_batches, int64_t k, ShortWindow short_window, int64_t ranks = 1) {
  std::vector<double> list;
  on_ranks(ranks,
           [&](Accelerator& accelerator) {
             OneWeight net;
             torch::optim::SGD sgd(net->parameters(), 1.0);
             auto [model, optimizer, loader] =
                 accelerator.prepare(net, sgd, counting(micro_batches * accelerator.num_processes(), 1));
             for (auto& batch : loader) {
               auto window = accelerator.accumulate(model);
               accelerator.backward(model(torch::ones_like(batch.data)).sum());
               optimizer.step();
               optimizer.zero_grad();
               if (accelerator.is_main_process()) list.push_back(net->w.item<double>());
             }
           },
           {.gradient_accumulation_steps = k, .accumulation = {.short_window = short_window}});
  return list;
}

std::vector<bool> syncs(int64_t micro_batches, int64_t k, bool with_dataloader, int64_t epochs) {
  std::vector<bool> list;
  Accelerator accelerator(
      {.cpu = true, .gradient_accumulation_steps = k, .accumulation = {.sync_with_dataloader = with_dataloader}});
  auto loader = accelerator.prepare(counting(micro_batches, 1));
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    for ([[maybe_unused]] auto& batch : loader) {
      auto window = accelerator.accumulate();
      list.push_back(accelerator.sync_gradients());
    }
  }
  return list;
}

std::vector<bool> ends_at(int64_t count, const std::vector<size_t>& ends) {
  std::vector<bool> list(static_cast<size_t>(count), false);
  for (const size_t end : ends) list[end - 1] = true;
  return list;
}

/// An all-reduce that counts its calls per rank.
class Counted final : public accelerate::gradient::BucketReducer {
 public:
  Counted(const accelerate::comm::Group& group, std::vector<int64_t>& starts)
      : inner_(group), starts_(starts[static_cast<size_t>(group.rank())]) {}
  void start(const accelerate::gradient::GradientBucket& bucket, accelerate::comm::Execution execution) override {
    ++starts_;
    inner_.start(bucket, execution);
  }
  void finish(const accelerate::gradient::GradientBucket& bucket) override { inner_.finish(bucket); }
  void forget() override { inner_.forget(); }
  [[nodiscard]] int64_t bytes_communicated() const override { return inner_.bytes_communicated(); }

 private:
  accelerate::gradient::AllReduce inner_;
  int64_t& starts_;
};

}  // namespace

TEST_CASE("a micro-batch that does not end its window starts no reduction") {
  std::vector<int64_t> starts(2);
  AcceleratorOptions options{.gradient_accumulation_steps = 3};
  options.comm_hook = accelerate::gradient::CommHook(
      [&](const accelerate::comm::Group& group) { return std::make_unique<Counted>(group, starts); });
  on_ranks(
      2,
      [&](Accelerator& accelerator) {
        OneWeight net;
        auto [model, optimizer, loader] =
            accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0), counting(2 * 8, 1));
        std::vector<int64_t> counts, bytes;
        for (auto& batch : loader) {
          auto window = accelerator.accumulate(model);
          const int64_t before = model.core().gradient_reducer()->bytes_communicated();
          accelerator.backward(model(batch.data).sum());
          optimizer.step();
          optimizer.zero_grad();
          counts.push_back(std::exchange(starts[static_cast<size_t>(accelerator.process_index())], 0));
          bytes.push_back(model.core().gradient_reducer()->bytes_communicated() - before);
        }
        CHECK(counts == std::vector<int64_t>{0, 0, 1, 0, 0, 1, 0, 1});
        for (size_t i = 0; i < bytes.size(); ++i) CHECK((bytes[i] > 0) == (counts[i] > 0));
      },
      options);
}

TEST_CASE("windows end every k micro-batches and with the loader's last batch") {
  CHECK(syncs(10, 4, true, 2) == ends_at(20, {4, 8, 10, 14, 18, 20}));
  CHECK(syncs(10, 4, false, 2) == ends_at(20, {4, 8, 12, 16, 20}));
  CHECK(syncs(12, 2, true, 1) == ends_at(12, {2, 4, 6, 8, 10, 12}));
  CHECK(syncs(6, 4, true, 1) == ends_at(6, {4, 6}));
}

TEST_CASE("sync_gradients() is initially true, keeps the value of the last micro-batch, and can be set") {
  Accelerator accelerator({.cpu = true, .gradient_accumulation_steps = 2});
  CHECK(accelerator.sync_gradients());
  { const auto first = accelerator.accumulate(); }
  CHECK_FALSE(accelerator.sync_gradients());
  { const auto last = accelerator.accumulate(); }
  CHECK(accelerator.sync_gradients());
  accelerator.set_sync_gradients(false);
  CHECK_FALSE(accelerator.sync_gradients());
}

TEST_CASE("one accumulate() call is one micro-batch for all its models; a call per model counts separately") {
  Accelerator accelerator({.cpu = true, .gradient_accumulation_steps = 4});
  auto [a, b] = accelerator.prepare(OneWeight(), OneWeight());
  std::vector<bool> together, one_by_one, nested;
  for (int i = 0; i < 4; ++i) {
    auto window = accelerator.accumulate(a, b);
    together.push_back(accelerator.sync_gradients());
  }
  for (int i = 0; i < 2; ++i) {
    for (const auto& model : {a, b}) {
      auto window = accelerator.accumulate(model);
      one_by_one.push_back(accelerator.sync_gradients());
    }
    auto outer = accelerator.accumulate(a);
    auto inner = accelerator.accumulate(b);
    nested.push_back(accelerator.sync_gradients());
  }
  CHECK(together == std::vector<bool>{false, false, false, true});
  CHECK(one_by_one == std::vector<bool>{false, false, false, false});
  CHECK(nested == std::vector<bool>{true, true});
}

TEST_CASE("no_sync() with one process changes neither gradients nor steps") {
  Accelerator accelerator({.cpu = true});
  OneWeight net, plain;
  auto [model, optimizer, reference, of_reference] = accelerator.prepare(
      net, torch::optim::SGD(net->parameters(), 1.0), plain, torch::optim::SGD(plain->parameters(), 1.0));
  for (const double x : {1.0, 2.0, 3.0}) {
    const auto input = torch::full({1}, x, torch::kDouble);
    {
      auto local = accelerator.no_sync(model);
      accelerator.backward(model(input).sum());
    }
    accelerator.backward(reference(input).sum());
    CHECK(net->w.grad().item<double>() == plain->w.grad().item<double>());
    optimizer.step();
    of_reference.step();
    CHECK(net->w.item<double>() == plain->w.item<double>());
  }
}

TEST_CASE("two ranks end a window with one process's weights for any split, sharding and reduction") {
  // 24 samples, 4 per round of all ranks, 2 rounds per window; a schedule follows the optimizer.
  const auto train = [](int64_t ranks, const AcceleratorOptions& options, int64_t batch_size) {
    std::vector<double> gradients;  // at the ends of windows
    on_ranks(
        ranks,
        [&](Accelerator& accelerator) {
          OneWeight net(1.0);
          torch::optim::SGD sgd(net->parameters(), 0.1);
          accelerate::optim::ExponentialLR slower(sgd, 0.5);
          auto [model, optimizer, schedule, loader] = accelerator.prepare(net, sgd, slower, counting(24, batch_size));
          for (auto& batch : loader) {
            auto window = accelerator.accumulate(model);
            accelerator.backward(model(batch.data).square().mean());
            const auto everywhere = accelerator.gather(net->w.grad().clone());
            const bool equal = (everywhere == everywhere[0]).all().item<bool>();
            const bool reduced = accelerator.sync_gradients() || options.accumulation.sync_each_batch;
            CHECK(equal == (reduced || ranks == 1));
            if (accelerator.sync_gradients() && accelerator.is_main_process()) {
              gradients.push_back(everywhere[0].item<double>());
            }
            optimizer.step();
            schedule.step();
            optimizer.zero_grad();
          }
          if (accelerator.is_main_process()) gradients.push_back(net->w.item<double>());
        },
        options);
    return gradients;
  };
  const auto reference = train(1, {.cpu = true, .gradient_accumulation_steps = 2}, 4);
  REQUIRE(reference.size() == 4);
  for (int bits = 0; bits < 8; ++bits) {
    const bool split = (bits & 1) != 0, dispatch = (bits & 2) != 0, each_batch = (bits & 4) != 0;
    CAPTURE(bits);
    const auto seen = train(2,
                            {.cpu = true,
                             .gradient_accumulation_steps = 2,
                             .accumulation = {.sync_each_batch = each_batch},
                             .split_batches = split,
                             .dispatch_batches = dispatch},
                            split ? 4 : 2);
    REQUIRE(seen.size() == reference.size());
    for (size_t i = 0; i < seen.size(); ++i) CHECK(seen[i] == doctest::Approx(reference[i]).epsilon(1e-12));
  }
}

TEST_CASE("a short last window is divided by its true length, or by k on request") {
  for (const int64_t ranks : {1, 2}) {
    CHECK(weights(6, 4, ShortWindow::true_length, ranks) == std::vector<double>{0, 0, 0, -1, -1, -2});
    CHECK(weights(6, 4, ShortWindow::full_length, ranks) == std::vector<double>{0, 0, 0, -1, -1, -1.5});
    CHECK(weights(5, 4, ShortWindow::true_length, ranks) == std::vector<double>{0, 0, 0, -1, -2});
  }
}

TEST_CASE("gradients are local within a window and the mean over the ranks at its end") {
  on_ranks(2,
           [](Accelerator& accelerator) {
             OneWeight net;
             torch::optim::SGD sgd(net->parameters(), 1.0);
             auto [model, optimizer] = accelerator.prepare(net, sgd);
             const double mine = static_cast<double>(accelerator.process_index()) + 1.0;
             for (int64_t micro = 1; micro <= 4; ++micro) {
               auto window = accelerator.accumulate(model);
               accelerator.backward(model(torch::full({1}, mine, torch::kDouble)).sum());
               const double expected = accelerator.sync_gradients() ? 1.5 : mine * 0.5;
               CHECK(net->w.grad().item<double>() == doctest::Approx(expected));
               optimizer.step();
               optimizer.zero_grad();
             }
             CHECK(net->w.item<double>() == doctest::Approx(-3.0));
           },
           {.gradient_accumulation_steps = 2});
}

TEST_CASE("sync_each_batch reduces every micro-batch and still steps at the end of the window") {
  on_ranks(2,
           [](Accelerator& accelerator) {
             OneWeight net;
             torch::optim::SGD sgd(net->parameters(), 1.0);
             auto [model, optimizer] = accelerator.prepare(net, sgd);
             const double mine = static_cast<double>(accelerator.process_index()) + 1.0;
             for (int64_t micro = 1; micro <= 2; ++micro) {
               auto window = accelerator.accumulate(model);
               accelerator.backward(model(torch::full({1}, mine, torch::kDouble)).sum());
               CHECK(net->w.grad().item<double>() == doctest::Approx(0.75 * static_cast<double>(micro)));
               optimizer.step();
               CHECK(net->w.item<double>() == doctest::Approx(micro == 1 ? 0.0 : -1.5));
             }
           },
           {.gradient_accumulation_steps = 2, .accumulation = {.sync_each_batch = true}});
}

TEST_CASE("several models in one window step on the mean over ranks and micro-batches, the short window too") {
  on_ranks(2,
           [](Accelerator& accelerator) {
             OneWeight first, second;
             auto [one, two, optimizer, loader] =
                 accelerator.prepare(first, second, torch::optim::SGD({first->w, second->w}, 1.0), counting(10, 1));
             const auto x = torch::full({1}, static_cast<double>(accelerator.process_index()), torch::kDouble);
             for ([[maybe_unused]] auto& batch : loader) {
               auto window = accelerator.accumulate(one, two);
               accelerator.backward(one(x).sum() + two(2 * x).sum());
               optimizer.step();
               optimizer.zero_grad();
             }
             CHECK(first->w.item<double>() == doctest::Approx(-1.5));
             CHECK(second->w.item<double>() == doctest::Approx(-3.0));
           },
           {.gradient_accumulation_steps = 2});
}

TEST_CASE("a short last window is right for optimizers that share a model, prepared or not") {
  for (const int64_t ranks : {1, 2}) {
    on_ranks(ranks,
             [](Accelerator& accelerator) {
               OneWeight first, second, third;
               torch::nn::ModuleList net(first, second, third);
               torch::optim::SGD stock(third->parameters(), 1.0);
               auto [model, one, two, loader] = accelerator.prepare(net, torch::optim::SGD({first->w, second->w}, 1.0),
                                                                    torch::optim::SGD({second->w}, 1.0),
                                                                    counting(6 * accelerator.num_processes(), 1));
               for (auto& batch : loader) {
                 auto window = accelerator.accumulate(model);
                 const auto x = torch::ones_like(batch.data);
                 accelerator.backward((first(x) + second(x) + third(x)).sum());
                 one.step();
                 two.step();
                 if (accelerator.sync_gradients()) stock.step();
                 if (accelerator.sync_gradients()) net->zero_grad();
               }
               CHECK(first->w.item<double>() == doctest::Approx(-2.0));
               CHECK(second->w.item<double>() == doctest::Approx(-4.0));  // stepped by both
               CHECK(third->w.item<double>() == doctest::Approx(-2.0));
             },
             {.gradient_accumulation_steps = 4});
  }
}

TEST_CASE("zero_grad() may be first or last in a micro-batch, and drops an abandoned batch") {
  for (const int64_t ranks : {1, 2}) {
    for (const bool first : {true, false}) {
      on_ranks(ranks,
               [first](Accelerator& accelerator) {
                 OneWeight net;
                 auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
                 const auto x = torch::ones({1}, torch::kDouble);
                 for (int micro = 0; micro < 4; ++micro) {
                   auto window = accelerator.accumulate(model);
                   if (first) optimizer.zero_grad();
                   accelerator.backward(model(x).sum());
                   optimizer.step();
                   if (!first) optimizer.zero_grad();
                 }
                 CHECK(net->w.item<double>() == -2.0);
                 for (int micro = 0; micro < 2; ++micro) {
                   auto window = accelerator.accumulate(model);
                   accelerator.backward(model(100 * x).sum());
                   optimizer.zero_grad();  // after the backward: drops the window
                 }
                 CHECK_FALSE((net->w.grad().defined() && net->w.grad().item<double>() != 0.0));
               },
               {.gradient_accumulation_steps = 2});
    }
  }
}

TEST_CASE("each optimizer keeps its gradients until its own backward if a micro-batch has two losses") {
  for (const int64_t ranks : {1, 2}) {
    on_ranks(ranks,
             [](Accelerator& accelerator) {
               OneWeight d, g;
               auto [discriminator, generator, of_d, of_g] = accelerator.prepare(
                   d, g, torch::optim::SGD(d->parameters(), 1.0), torch::optim::SGD(g->parameters(), 1.0));
               const auto x = torch::ones({1}, torch::kDouble);
               for (int micro = 0; micro < 4; ++micro) {
                 auto window = accelerator.accumulate(discriminator, generator);
                 of_d.zero_grad();
                 accelerator.backward(discriminator(x).sum());
                 of_d.step();
                 of_g.zero_grad();
                 accelerator.backward(generator(x).sum());
                 of_g.step();
               }
               CHECK(d->w.item<double>() == -2.0);
               CHECK(g->w.item<double>() == -2.0);
             },
             {.gradient_accumulation_steps = 2});
  }
}

TEST_CASE("free_memory() or the user ends an incomplete window") {
  Accelerator accelerator({.cpu = true, .gradient_accumulation_steps = 2});
  OneWeight net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto step = [&] {
    model(torch::ones({1}, torch::kDouble)).sum().backward();
    optimizer.step();
    optimizer.zero_grad();
  };
  { auto window = accelerator.accumulate(model); }
  step();
  CHECK(net->w.item<double>() == 0.0);
  accelerator.set_sync_gradients(true);
  step();
  CHECK(net->w.item<double>() == -2.0);  // with the pending gradient
  { auto window = accelerator.accumulate(model); }
  CHECK_FALSE(accelerator.sync_gradients());  // the first of another window
  { auto window = accelerator.accumulate(model); }
  CHECK(accelerator.sync_gradients());
  { auto window = accelerator.accumulate(model); }
  CHECK_FALSE(accelerator.sync_gradients());
  accelerator.clear();
  CHECK(accelerator.sync_gradients());
  step();
  CHECK(net->w.item<double>() == -3.0);
}

TEST_CASE("the number of micro-batches can change and must be at least 1") {
  Accelerator accelerator({.cpu = true, .gradient_accumulation_steps = 2});
  CHECK(accelerator.gradient_accumulation_steps() == 2);
  accelerator.set_gradient_accumulation_steps(4);
  CHECK(accelerator.gradient_accumulation_steps() == 4);
  CHECK_THROWS_WITH(accelerator.set_gradient_accumulation_steps(0),
                    doctest::Contains("gradient_accumulation_steps: is 0, must be at least 1"));
}

TEST_CASE("trigger_sync_in_backward() reduces the third backward of three forwards in no_sync()") {
  on_ranks(2, [](Accelerator& accelerator) {
    OneWeight net;
    auto model = accelerator.prepare(net);
    const double mine = static_cast<double>(accelerator.process_index());
    std::vector<torch::Tensor> losses;
    {
      auto local = accelerator.no_sync(model);
      for (int i = 0; i < 3; ++i) losses.push_back(model(torch::full({1}, mine, torch::kDouble)).sum());
    }
    accelerator.backward(losses[0]);
    CHECK(net->w.grad().item<double>() == mine);
    accelerator.backward(losses[1]);
    CHECK(net->w.grad().item<double>() == 2 * mine);
    accelerator.trigger_sync_in_backward(model);
    accelerator.backward(losses[2]);
    CHECK(net->w.grad().item<double>() == doctest::Approx(1.5));
  });
}

TEST_CASE("an optimizer step on gradients that were never reduced is an error") {
  on_ranks(2, [](Accelerator& accelerator) {
    OneWeight net;
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    {
      auto local = accelerator.no_sync(model);
      accelerator.backward(model(torch::ones({1}, torch::kDouble)).sum());
    }
    CHECK_THROWS_WITH(
        optimizer.step(),
        doctest::Contains(
            "optimizer.step: the gradient of parameter w is this rank's own, not the mean of 2 "
            "ranks: it is from before prepare(), or no_sync was open at the last model(x) before its "
            "backward (model->forward(x) does not count); run one synchronised backward before the step"));
  });
}

TEST_CASE("an optimizer with a closure throws for gradients that were never reduced") {
  on_ranks(2, [](Accelerator& accelerator) {
    OneWeight net(1.0);
    torch::optim::LBFGS lbfgs(net->parameters(), torch::optim::LBFGSOptions(1.0));
    auto [model, optimizer] = accelerator.prepare(net, lbfgs);
    const double target = 3.0 + static_cast<double>(accelerator.process_index());
    const auto closure = [&] {
      optimizer.zero_grad();
      auto loss = (model(torch::ones({1}, torch::kDouble)) - target).pow(2).sum();
      loss.backward();
      return loss;
    };
    {
      auto local = accelerator.no_sync(model);
      CHECK_THROWS_WITH(optimizer.step(closure), doctest::Contains("the gradient of parameter w is this rank's own"));
      CHECK(net->w.item<double>() == 1.0);
    }
    optimizer.step(closure);
    CHECK(net->w.item<double>() == doctest::Approx(3.5));
  });
}

TEST_CASE("LBFGS uses the mean of the ranks' losses, so all ranks take equal steps") {
  for (const bool wolfe : {false, true}) {
    CAPTURE(wolfe);
    on_ranks(
        2,
        [wolfe](Accelerator& accelerator) {
          OneWeight net(0.5);
          auto options = torch::optim::LBFGSOptions(1.0);
          if (wolfe) options.line_search_fn("strong_wolfe");
          torch::optim::LBFGS lbfgs(net->parameters(), options);
          auto [model, optimizer] = accelerator.prepare(net, lbfgs);
          const auto rank = static_cast<double>(accelerator.process_index());
          const auto x = torch::tensor({1 + 3 * rank, 2 - rank}, torch::kDouble);
          double calls = 0;
          for (int step = 0; step < 3; ++step) {
            const at::Tensor loss = optimizer.step([&, &model = model, &optimizer = optimizer] {
              ++calls;
              optimizer.zero_grad();
              const auto y = model(x);
              auto own = (y - 1).pow(4).sum() + torch::exp(y).sum() * 0.1 * (1 + rank);
              accelerator.backward(own);
              return own;
            });
            const auto all = accelerator.gather(
                torch::tensor({net->w.item<double>(), loss.item<double>(), calls}, torch::kDouble).reshape({1, 3}));
            CHECK(all[0].equal(all[1]));
          }
        },
        {.timeout = std::chrono::seconds(20)});
  }
}

TEST_CASE("swapping averages in between two micro-batches does not change their window") {
  for (const int64_t ranks : {1, 2}) {
    on_ranks(ranks,
             [](Accelerator& accelerator) {
               OneWeight net;
               auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
               accelerate::optim::ExponentialMovingAverage ema(model, {.decay = 0.5});
               for (int micro = 1; micro <= 4; ++micro) {
                 auto window = accelerator.accumulate(model);
                 accelerator.backward(model(full(1.0)).sum());
                 optimizer.step();
                 optimizer.zero_grad();
                 if (micro == 2) ema.update();
                 if (micro % 2 == 1) auto averaged = ema.average_parameters();
               }
               CHECK(net->w.item<double>() == -2.0);
             },
             {.gradient_accumulation_steps = 2});
  }
}

TEST_CASE("drop_gradients() ends an incomplete window and drops its gradients") {
  on_ranks(2,
           [](Accelerator& accelerator) {
             OneWeight net;
             auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
             for (const double x : {100.0, 1.0, 3.0}) {
               auto window = accelerator.accumulate(model);
               accelerator.backward(model(full(x)).sum());
               if (x == 100.0) accelerator.drop_gradients();
               optimizer.step();
             }
             CHECK(net->w.item<double>() == -2.0);
           },
           {.gradient_accumulation_steps = 2});
}

TEST_CASE("a gradient from before prepare() is local: a step on it throws, the next backward reduces it") {
  on_ranks(2, [](Accelerator& accelerator) {
    OneWeight net;
    const auto x = torch::full({1}, static_cast<double>(accelerator.process_index()), torch::kDouble);
    net(x).sum().backward();
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
    CHECK_THROWS_WITH(optimizer.step(), doctest::Contains("it is from before prepare(), or no_sync was open"));
    accelerator.backward(model(x).sum());
    optimizer.step();
    CHECK(net->w.item<double>() == -1.0);
  });
}

TEST_CASE("zero_grad(false) leaves zeros, so weight decay applies, on one rank and on two") {
  for (const int64_t ranks : {1, 2}) {
    on_ranks(ranks, [](Accelerator& accelerator) {
      OneWeight net(1.0), unused(1.0);
      torch::nn::ModuleList both(net, unused);
      auto [model, optimizer] = accelerator.prepare(
          both, torch::optim::SGD({net->w, unused->w}, torch::optim::SGDOptions(0.1).weight_decay(1)));
      for (int step = 0; step < 2; ++step) {
        accelerator.backward(net(torch::zeros({1}, torch::kDouble)).sum());
        optimizer.step();
        optimizer.zero_grad(false);
        optimizer.step();
        optimizer.zero_grad();
        optimizer.step();
      }
      CHECK(net->w.item<double>() == doctest::Approx(0.9 * 0.9 * 0.9 * 0.9));
      CHECK(unused->w.item<double>() == 1.0);
    });
  }
}

TEST_CASE("an optimizer that is prepared before free_memory() works with models prepared after it") {
  on_ranks(2, [](Accelerator& accelerator) {
    OneWeight net;
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [first, optimizer] = accelerator.prepare(net, sgd);
    accelerator.backward(first(torch::ones({1}, torch::kDouble)).sum());
    optimizer.step();
    accelerator.free_memory();
    {
      auto forgotten = std::move(first);  // the last handle of the old reducer
    }
    auto again = accelerator.prepare(net);
    auto local = accelerator.no_sync(again);
    accelerator.backward(again(torch::ones({1}, torch::kDouble)).sum());
    CHECK_THROWS_WITH(optimizer.step(), doctest::Contains("run one synchronised backward before the step"));
  });
}

TEST_CASE("a step on parameters of a module that was not prepared is an error on several ranks") {
  on_ranks(2, [](Accelerator& accelerator) {
    OneWeight net;
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto optimizer = accelerator.prepare(sgd);
    net(torch::ones({1}, torch::kDouble)).sum().backward();
    CHECK_THROWS_WITH(
        optimizer.step(),
        doctest::Contains("optimizer.step: a parameter of shape [1] has a gradient that no prepared model "
                          "reduces over the 2 ranks; give its module to prepare() after requires_grad is set, again "
                          "if it changed since"));
  });
}

TEST_CASE("a parameter that replaces a prepared one in an optimizer counts as unprepared") {
  for (const int64_t ranks : {1, 2}) {
    on_ranks(ranks, [ranks](Accelerator& accelerator) {
      const auto ones = torch::ones({1}, torch::kDouble);
      OneWeight net, other;
      torch::optim::SGD sgd(net->parameters(), 1.0);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      accelerator.backward(model(ones).sum());
      optimizer.step();
      sgd.param_groups()[0].params()[0] = other->parameters()[0];
      for (int step = 0; step < 2; ++step) {  // without zero_grad() gradients accumulate
        optimizer.zero_grad();
        accelerator.backward((model(ones) + other(ones)).sum());
      }
      CHECK(other->parameters()[0].grad().item<double>() == 1.0);
      if (ranks == 1) {
        optimizer.step();
      } else {
        CHECK_THROWS_WITH(optimizer.step(), doctest::Contains("has a gradient that no prepared model reduces"));
      }
    });
  }
}

TEST_CASE("backward() throws if the loss is not a scalar") {
  Accelerator accelerator({.cpu = true});
  CHECK_THROWS_WITH(
      accelerator.backward(torch::ones({3}, torch::requires_grad())),
      doctest::Contains("backward: the loss has 3 elements, must have 1; take its mean() or sum() first"));
}

TEST_CASE("a step of an unprepared optimizer within a window is reported at the next backward") {
  on_ranks(2,
           [](Accelerator& accelerator) {
             OneWeight net;
             torch::optim::SGD sgd(net->parameters(), 1.0);
             auto model = accelerator.prepare(net);
             const auto micro_batch = [&] {
               auto window = accelerator.accumulate(model);
               accelerator.backward(model(torch::ones({1}, torch::kDouble)).sum());
               sgd.step();
               sgd.zero_grad();
             };
             micro_batch();
             CHECK_THROWS_WITH(micro_batch(), doctest::Contains("backward: parameter w changed within an accumulation "
                                                                "window"));
           },
           {.gradient_accumulation_steps = 4});
}
