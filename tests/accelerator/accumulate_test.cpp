// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include "tests/accelerator/ranks.hpp"

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using accelerate::ShortWindow;

namespace {

// After each of m micro-batches with dL/dw = 1, SGD with rate 1: w as behaviour.md section 8 lists it.
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

}  // namespace

TEST_CASE("windows end every k micro-batches and with the loader's last batch") {
  CHECK(syncs(10, 4, true, 2) == ends_at(20, {4, 8, 10, 14, 18, 20}));
  CHECK(syncs(10, 4, false, 2) == ends_at(20, {4, 8, 12, 16, 20}));
  CHECK(syncs(12, 2, true, 1) == ends_at(12, {2, 4, 6, 8, 10, 12}));
  CHECK(syncs(6, 4, true, 1) == ends_at(6, {4, 6}));
}

TEST_CASE("a short last window is divided by its true length, or by k on request") {
  for (const int64_t ranks : {1, 2}) {
    CHECK(weights(6, 4, ShortWindow::true_length, ranks) == std::vector<double>{0, 0, 0, -1, -1, -2});
    CHECK(weights(6, 4, ShortWindow::full_length, ranks) == std::vector<double>{0, 0, 0, -1, -1, -1.5});
    CHECK(weights(5, 4, ShortWindow::true_length, ranks) == std::vector<double>{0, 0, 0, -1, -2});
  }
}

TEST_CASE("within a window gradients stay local, at its end they are the mean over the ranks") {
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

TEST_CASE("the number of micro-batches can change, and less than one is refused") {
  Accelerator accelerator({.cpu = true, .gradient_accumulation_steps = 2});
  CHECK(accelerator.gradient_accumulation_steps() == 2);
  accelerator.set_gradient_accumulation_steps(4);
  CHECK(accelerator.gradient_accumulation_steps() == 4);
  CHECK_THROWS_WITH(accelerator.set_gradient_accumulation_steps(0),
                    doctest::Contains("gradient_accumulation_steps: is 0, must be at least 1"));
}

TEST_CASE("three forwards in no_sync, two local backwards, the third made to synchronise") {
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
        doctest::Contains("optimizer.step: the gradient of parameter w is this rank's own, not the mean of 2 "
                          "ranks: its backward ran under no_sync; run one synchronised backward before the step"));
  });
}

TEST_CASE("an optimizer prepared before free_memory knows the models prepared after it") {
  on_ranks(2, [](Accelerator& accelerator) {
    OneWeight net;
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [first, optimizer] = accelerator.prepare(net, sgd);
    accelerator.backward(first(torch::ones({1}, torch::kDouble)).sum());
    optimizer.step();
    accelerator.free_memory();
    {
      auto forgotten = std::move(first);  // the last handle of the old engine
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
                          "reduces over the 2 ranks; give its module to prepare(), after requires_grad is set"));
  });
}

TEST_CASE("a loss that is not one number is refused") {
  Accelerator accelerator({.cpu = true});
  CHECK_THROWS_WITH(
      accelerator.backward(torch::ones({3}, torch::requires_grad())),
      doctest::Contains("backward: the loss has 3 elements, must have 1; take its mean() or sum() first"));
}
