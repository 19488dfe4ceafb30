// SPDX-License-Identifier: Apache-2.0
// accumulate() at a wrong place of a program, and missing.
#include "tests/testing.hpp"
//
#include "accelerate/base/log.hpp"
#include "tests/accelerator/ranks.hpp"

using accelerate::Accelerator;

namespace {

std::vector<std::string> warnings_of(int64_t steps, const std::function<void(Accelerator&)>& program) {
  std::vector<std::string> lines;
  accelerate::base::reset_log_once();
  auto previous = accelerate::base::set_log_handler([&](auto, std::string_view line) { lines.emplace_back(line); });
  Accelerator accelerator({.cpu = true, .gradient_accumulation_steps = steps});
  program(accelerator);
  accelerate::base::set_log_handler(std::move(previous));
  return lines;
}

/// Steps of a loop over 8 batches.
template <typename Loader, typename Model, typename Optimizer>
void one_pass(Accelerator& accelerator, Loader& loader, Model& model, Optimizer& optimizer) {
  for (auto& batch : loader) {
    optimizer.zero_grad();
    accelerator.backward(model(torch::ones_like(batch.data)).sum());
    optimizer.step();
  }
}

}  // namespace

TEST_CASE("accumulate() around the loop is an error at the second batch, on 1 and 2 ranks, for loaders of any kind") {
  const auto refuses = [](Accelerator& accelerator, auto loader) {
    OneWeight net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
    auto window = accelerator.accumulate(model);
    const auto text = fmt::format(
        "[rank {} of {}, {}] backward: this is backward 2 in one accumulate() scope, and the loader has handed out "
        "another batch since backward 1; a scope is one micro-batch (gradient_accumulation_steps is 4), so no "
        "optimizer would step in this loop. Open the scope in the loop's body: for (auto& batch : loader) {{ auto "
        "window = accelerator.accumulate(model); ... }}",
        accelerator.process_index(), accelerator.num_processes(), accelerator.place().host);
    CHECK_THROWS_WITH(one_pass(accelerator, loader, model, optimizer), text.c_str());
  };
  for (const int64_t ranks : {1, 2}) {
    on_ranks(ranks, [&](Accelerator& accelerator) { refuses(accelerator, accelerator.prepare(counting(16, 1))); },
             {.cpu = true, .gradient_accumulation_steps = 4});
    on_ranks(ranks, [&](Accelerator& accelerator) { refuses(accelerator, accelerator.prepare(counting(16, 1))); },
             {.cpu = true, .gradient_accumulation_steps = 4, .dispatch_batches = true});
    on_ranks(ranks,
             [&](Accelerator& accelerator) {
               const accelerate::data::Batch batch{torch::ones({1}, torch::kDouble), torch::zeros({1})};
               const std::vector<accelerate::data::Batch> list(8, batch);
               refuses(accelerator, accelerator.prepare(std::vector(list)));
             },
             {.cpu = true, .gradient_accumulation_steps = 4});
  }
}

TEST_CASE("accumulate() around a loop that increments an iterator is an error at the second batch") {
  Accelerator accelerator({.cpu = true, .gradient_accumulation_steps = 4});
  OneWeight net;
  auto [model, optimizer, loader] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0), counting(8, 1));
  auto it = loader.begin();
  auto window = accelerator.accumulate(model);
  accelerator.backward(model(it->data).sum());
  ++it;
  CHECK_THROWS_WITH(accelerator.backward(model(it->data).sum()),
                    doctest::Contains("this is backward 2 in one accumulate() scope"));
}

TEST_CASE("accumulate() around the loop is no error if every batch steps") {
  Accelerator accelerator({.cpu = true});
  OneWeight net;
  auto [model, optimizer, loader] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0), counting(8, 1));
  auto window = accelerator.accumulate(model);
  one_pass(accelerator, loader, model, optimizer);
  CHECK(net->w.item<double>() == -8.0);
}

TEST_CASE("a micro-batch may have several backwards: for one batch, parts of it, and a second loader's batches") {
  for (const int64_t ranks : {1, 2}) {
    on_ranks(ranks,
             [](Accelerator& accelerator) {
               OneWeight net;
               auto [model, optimizer, loader, parts] = accelerator.prepare(
                   net, torch::optim::SGD(net->parameters(), 1.0), counting(4 * accelerator.num_processes(), 1),
                   counting(3 * accelerator.num_processes(), 1));
               for ([[maybe_unused]] auto& batch : loader) {
                 auto window = accelerator.accumulate(model);
                 accelerator.backward(model(full(1.0)).sum());
                 for ([[maybe_unused]] auto& part : parts) accelerator.backward(model(full(1.0)).sum());
                 accelerator.backward(model(full(1.0)).sum());
                 optimizer.step();
                 optimizer.zero_grad();
               }
               CHECK(net->w.item<double>() == -10.0);
             },
             {.cpu = true, .gradient_accumulation_steps = 2});
  }
}

TEST_CASE("an optimizer that steps twice in one accumulate() scope, after a backward each, is reported once") {
  const auto lines = warnings_of(4, [](Accelerator& accelerator) {
    OneWeight net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
    auto window = accelerator.accumulate(model);
    for (int i = 0; i < 4; ++i) {
      accelerator.backward(model(full(1.0)).sum());
      optimizer.step();
    }
  });
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].find("optimizer.step: called again in one accumulate() scope, after another backward; a scope is one "
                      "micro-batch (gradient_accumulation_steps is 4), in which the optimizer does not step. Open a "
                      "scope for each batch, in the loop's body") != std::string::npos);
  CHECK(warnings_of(2,
                    [](Accelerator& accelerator) {  // two players that step independently
                      OneWeight d, g;
                      auto [one, other, of_one, of_other] = accelerator.prepare(
                          d, g, torch::optim::SGD(d->parameters(), 1.0), torch::optim::SGD(g->parameters(), 1.0));
                      for (int micro = 0; micro < 4; ++micro) {
                        auto window = accelerator.accumulate(one, other);
                        accelerator.backward(one(full(1.0)).sum());
                        of_one.step();
                        accelerator.backward(other(full(1.0)).sum());
                        of_other.step();
                      }
                    })
            .empty());
}

TEST_CASE("a step without accumulate() is reported once if gradient_accumulation_steps is 4") {
  const auto lines = warnings_of(4, [](Accelerator& accelerator) {
    OneWeight net;
    auto [model, optimizer, loader] =
        accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0), counting(8, 1));
    one_pass(accelerator, loader, model, optimizer);
    CHECK(net->w.item<double>() == -2.0);
  });
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].find("optimizer.step: gradient_accumulation_steps is 4, but this step follows 1 backward, and the "
                      "program has opened no accumulate() scope. Open one in the loop's body: auto window = "
                      "accelerator.accumulate(model)") != std::string::npos);
}

TEST_CASE("accumulation with no_sync() or set_sync_gradients() logs no warning about a missing accumulate()") {
  const auto by_hand = [](bool with_no_sync) {
    return warnings_of(2, [&](Accelerator& accelerator) {
      OneWeight net;
      auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
      for (int micro = 0; micro < 4; ++micro) {
        if (!with_no_sync) accelerator.set_sync_gradients(micro % 2 == 1);
        accelerator.backward(model(full(1.0)).sum());
        if (micro % 2 == 0 && with_no_sync) continue;
        optimizer.step();
        optimizer.zero_grad();
      }
      CHECK(net->w.item<double>() == -2.0);
    });
  };
  CHECK(by_hand(true).empty());
  CHECK(by_hand(false).empty());
}
