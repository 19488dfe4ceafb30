// SPDX-License-Identifier: Apache-2.0
// Steps that do not do what their writer meant are told once.
#include "tests/testing.hpp"
//
#include "accelerate/base/log.hpp"
#include "tests/accelerator/ranks.hpp"

using accelerate::Accelerator;

namespace {

torch::Tensor full(double value) { return torch::full({1}, value, torch::kDouble); }

// What program logs, each line as it came.
std::vector<std::string> lines_of(const std::function<void(Accelerator&)>& program, int64_t steps = 1) {
  std::vector<std::string> lines;
  accelerate::base::forget_lines();
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

TEST_CASE("a step before any backward, and one of another model's optimizer, are told once") {
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
                   auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(other->parameters(), 1.0));
                   for (int step = 0; step < 3; ++step) {
                     accelerator.backward(model(full(1.0)).sum());
                     optimizer.step();
                   }
                 }),
                 text));
}

TEST_CASE("a plain loss.backward() in a window is told once at the step; accelerator.backward() is not") {
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
