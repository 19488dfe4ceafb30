// SPDX-License-Identifier: Apache-2.0
// Steps that have no effect are reported once.
#include "tests/testing.hpp"
//
#include "accelerate/base/log.hpp"
#include "tests/accelerator/ranks.hpp"

using accelerate::Accelerator;

namespace {

// Returns the log lines of the program in order.
std::vector<std::string> lines_of(const std::function<void(Accelerator&)>& program, int64_t steps = 1) {
  std::vector<std::string> lines;
  accelerate::base::reset_log_once();
  auto previous = accelerate::base::set_log_handler([&](auto, std::string_view line) { lines.emplace_back(line); });
  Accelerator accelerator({.cpu = true, .gradient_accumulation_steps = steps});
  program(accelerator);
  accelerate::base::set_log_handler(std::move(previous));
  return lines;
}

bool one_says(const std::vector<std::string>& lines, const std::string& text) {
  return lines.size() == 1 && lines.front().find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("a step before any backward, and a step of another model's optimizer, are reported once") {
  const std::string text =
      "optimizer.step: none of the optimizer's 1 parameters has a gradient, so nothing changes: no backward ran since "
      "they were zeroed, or the loss reaches another model's";
  CHECK(one_says(lines_of([](Accelerator& accelerator) {
                   OneWeight net;
                   auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
                   for (int step = 0; step < 3; ++step) optimizer.step();
                   accelerator.backward(model(full(1.0)).sum());
                   optimizer.step();
                 }),
                 text));
  CHECK(one_says(lines_of([](Accelerator& accelerator) {
                   OneWeight net, other;
                   auto [model, unused, optimizer] =
                       accelerator.prepare(net, other, torch::optim::SGD(other->parameters(), 1.0));
                   for (int step = 0; step < 3; ++step) {
                     accelerator.backward(model(full(1.0)).sum());
                     optimizer.step();
                   }
                 }),
                 text));
}

TEST_CASE("an optimizer of another module than the prepared one is refused, on one rank and on two") {
  for (const int64_t ranks : {1, 2}) {
    on_ranks(ranks, [](Accelerator& accelerator) {
      OneWeight net, copy;
      auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(copy->parameters(), 1.0));
      accelerator.backward(model(full(1.0)).sum());
      CHECK_THROWS_WITH(
          optimizer.step(),
          doctest::Contains("optimizer.step: none of the optimizer's 1 parameters is among the 1 of the "
                            "prepared models (1), and none has a gradient: it was made from another module; "
                            "make it from parameters() of the module that is prepared"));
    });
  }
}

TEST_CASE("an optimizer with some parameters of another module is reported") {
  CHECK(one_says(lines_of([](Accelerator& accelerator) {
                   OneWeight net, copy;
                   auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD({net->w, copy->w}, 1.0));
                   for (int step = 0; step < 3; ++step) {
                     accelerator.backward(model(full(1.0)).sum());
                     optimizer.step();
                   }
                 }),
                 "optimizer.step: 1 of the optimizer's 2 parameters belong to no prepared model and have no gradient, "
                 "the first of shape [1], so they do not change; if they are those of a copy, make the optimizer from "
                 "parameters() of the module that is prepared"));
}

TEST_CASE("one rank steps on its own parameters beside a prepared model") {
  Accelerator accelerator({.cpu = true});
  OneWeight net;
  const auto input = full(1.0).requires_grad_();
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD({input}, 1.0));
  net->w.detach().fill_(0.25);
  accelerator.backward(model(input).sum());
  optimizer.step();
  CHECK(input.item<double>() == 0.75);
}

TEST_CASE("prepare() refuses a parameter in two groups, and the next step one that is added twice") {
  Accelerator accelerator({.cpu = true});
  OneWeight net, other;
  torch::optim::SGD twice({net->w, net->w}, 1.0);
  CHECK_THROWS_WITH(
      (void)accelerator.prepare(twice),
      doctest::Contains("prepare: parameter 1 of the optimizer's group 0 is parameter 0 of its group 0 too "
                        "(shape [1]): it would be stepped on twice; list it once."));
  torch::optim::SGD later({net->w}, 1.0);
  auto [model, optimizer] = accelerator.prepare(net, later);
  accelerator.backward(model(full(1.0)).sum());
  later.add_param_group(torch::optim::OptimizerParamGroup({other->w, net->w}));
  CHECK_THROWS_WITH(optimizer.step(),
                    doctest::Contains("optimizer.step: parameter 1 of the optimizer's group 1 is parameter 0 of its "
                                      "group 0 too (shape [1])"));
}

TEST_CASE("a plain loss.backward() in a window is reported once at the step; accelerator.backward() is not") {
  const auto train = [](Accelerator& accelerator, bool plain) {
    OneWeight net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
    for (int micro = 0; micro < 4; ++micro) {
      auto window = accelerator.accumulate(model);
      const auto loss = model(full(1.0)).sum();
      plain ? loss.backward() : accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
    }
  };
  CHECK(
      one_says(lines_of([&](Accelerator& accelerator) { train(accelerator, true); }, 2),
               "optimizer.step: accelerator.backward() did not run in this micro-batch; a plain loss.backward() is not "
               "divided by gradient_accumulation_steps (2)"));
  CHECK(lines_of([&](Accelerator& accelerator) { train(accelerator, false); }, 2).empty());
}

TEST_CASE("zero_grad() leaves no gradients; zero_grad(false) leaves zeros, so a step applies weight decay") {
  for (const int64_t ranks : {1, 2}) {
    on_ranks(ranks, [](Accelerator& accelerator) {
      OneWeight net(1.0);
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.5).weight_decay(0.5));
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      const auto backward = [&, &model = model] {
        accelerator.backward(model(full(1.0)).sum());
        REQUIRE(net->w.grad().item<double>() == 1.0);
      };
      backward();
      optimizer.zero_grad();
      CHECK_FALSE(net->w.grad().defined());
      optimizer.step();
      CHECK(net->w.item<double>() == 1.0);
      backward();
      optimizer.zero_grad(/*set_to_none=*/false);
      REQUIRE(net->w.grad().defined());
      CHECK(net->w.grad().item<double>() == 0.0);
      optimizer.step();
      CHECK(net->w.item<double>() == 0.75);
      backward();  // zeroed gradients start from nothing in both cases
      optimizer.step();
      CHECK(net->w.item<double>() == 0.0625);
    });
  }
}
