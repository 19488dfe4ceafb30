// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <algorithm>

#include "accelerate/base/log.hpp"
#include "tests/accelerator/ranks.hpp"
#include "tests/temporary_folder.hpp"

using accelerate::Accelerator;

TEST_CASE("local SGD steps on local gradients and averages the parameters every n steps and at the end") {
  on_ranks(2, [](Accelerator& accelerator) {
    OneWeight net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
    const double mine = static_cast<double>(accelerator.process_index()) + 1.0;  // 1 and 2
    const auto step = [&] {
      accelerator.backward(model(full(mine)).sum());
      optimizer.step();
      optimizer.zero_grad();
    };
    {
      auto local = accelerator.local_sgd(model, 2);
      step();
      local.step();
      CHECK(net->w.item<double>() == -mine);
      step();
      local.step();
      CHECK(net->w.item<double>() == doctest::Approx(-3.0));
      step();
      local.step();
      CHECK(net->w.item<double>() == doctest::Approx(-3.0 - mine));
      local.finish();
      CHECK(net->w.item<double>() == doctest::Approx(-4.5));
    }
    step();
    CHECK(net->w.item<double>() == doctest::Approx(-6.0));
    CHECK_THROWS_WITH((void)accelerator.local_sgd(model, 0),
                      doctest::Contains("local_sgd: steps is 0, must be at least 1"));
  });
}

TEST_CASE("local SGD counts windows: step() within a window neither averages nor counts") {
  on_ranks(2,
           [](Accelerator& accelerator) {
             OneWeight net;
             auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
             const double mine = static_cast<double>(accelerator.process_index()) + 1.0;  // 1 and 2
             auto local = accelerator.local_sgd(model, 2);
             std::vector<double> weights;
             for (int micro_batch = 0; micro_batch < 4; ++micro_batch) {
               auto window = accelerator.accumulate(model);
               accelerator.backward(model(full(mine)).sum());
               optimizer.step();
               optimizer.zero_grad();
               local.step();
               weights.push_back(net->w.item<double>());
             }
             CHECK(weights == std::vector<double>{0.0, -mine, -mine, -3.0});
           },
           {.gradient_accumulation_steps = 2});
}

TEST_CASE("a checkpoint within local SGD contains rank 0's weights, with one warning") {
  const testing::TemporaryFolder folder;
  std::vector<std::string> lines;
  accelerate::base::reset_log_once();
  const auto before = accelerate::base::set_log_handler([&](auto, std::string_view line) { lines.emplace_back(line); });
  on_ranks(2, [&](Accelerator& accelerator) {
    OneWeight net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
    {
      auto local = accelerator.local_sgd(model, 4);
      accelerator.backward(model(full(static_cast<double>(accelerator.process_index()) + 1.0)).sum());
      optimizer.step();
      local.step();
      for (int time = 0; time < 2; ++time) accelerator.save_state(folder.path / "last");
    }
    CHECK(net->w.item<double>() == doctest::Approx(-1.5));
    accelerator.load_state(folder.path / "last");
    CHECK(net->w.item<double>() == -1.0);
  });
  accelerate::base::set_log_handler(before);
  const std::string message =
      "save_state: within local_sgd() rank 0's weights are saved; save after its finish(), or right after a step() "
      "that averaged";
  CHECK(std::count_if(lines.begin(), lines.end(), [&](const auto& line) { return line.ends_with(message); }) == 1);
}

TEST_CASE("an exception ends local SGD: parameters stay different, gradients are reduced again") {
  on_ranks(2, [](Accelerator& accelerator) {
    OneWeight net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
    const double mine = static_cast<double>(accelerator.process_index()) + 1.0;
    const auto step = [&] {
      accelerator.backward(model(full(mine)).sum());
      optimizer.step();
      optimizer.zero_grad();
    };
    try {
      auto local = accelerator.local_sgd(model, 4);
      step();
      throw std::runtime_error("user");
    } catch (const std::runtime_error&) {
      CHECK(net->w.item<double>() == -mine);
      auto local = accelerator.local_sgd(model, 4);  // in a handler no reduction is active, so this call averages
    }
    CHECK(net->w.item<double>() == doctest::Approx(-1.5));
    for (int i = 0; i < 2; ++i) step();
    CHECK(net->w.item<double>() == doctest::Approx(-4.5));
  });
}

TEST_CASE("DistributedDataParallel alone: equal start, mean gradients, any optimizer") {
  accelerate::simulate(2, [] {
    OneWeight net;
    accelerate::DistributedDataParallel model(net);
    torch::optim::SGD sgd(model.parameters(), 1.0);
    const double mine = static_cast<double>(model.group().rank()) + 1.0;
    for (int step = 1; step <= 3; ++step) {
      sgd.zero_grad();
      model(full(mine)).sum().backward();
      sgd.step();
      CHECK(net->w.item<double>() == doctest::Approx(-1.5 * step));
    }
    {
      auto local = model.no_sync();
      sgd.zero_grad();
      model(full(mine)).sum().backward();
      CHECK(net->w.grad().item<double>() == mine);
    }
    model(full(mine)).sum().backward();
    CHECK(net->w.grad().item<double>() == doctest::Approx(3.0));
  });
}

TEST_CASE("training continues in step after a join over uneven batches and windows of two models") {
  on_ranks(2,
           [](Accelerator& accelerator) {
             OneWeight net;
             auto [model, optimizer, loader] =
                 accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0), counting(7, 2));
             std::vector<int64_t> sizes;
             {
               auto join = accelerator.join_uneven_inputs(model);
               for (auto& batch : loader) {
                 sizes.push_back(batch.data.size(0));
                 optimizer.zero_grad();
                 accelerator.backward(model(torch::ones_like(batch.data)).mean());
                 optimizer.step();
               }
             }
             CHECK(sizes == (accelerator.is_main_process() ? std::vector<int64_t>{2, 2} : std::vector<int64_t>{2, 1}));
             CHECK(net->w.item<double>() == doctest::Approx(-2.0));
           },
           {.even_batches = false});
  on_ranks(2,
           [](Accelerator& accelerator) {
             OneWeight first, second;
             auto [one, two, optimizer, loader] =
                 accelerator.prepare(first, second, torch::optim::SGD({first->w, second->w}, 1.0), counting(7, 1));
             {
               auto join = accelerator.join_uneven_inputs(one, two);
               for (auto& batch : loader) {  // 4 and 3 batches: two windows each; rank 1's last window is short
                 auto window = accelerator.accumulate(one, two);
                 const auto x = torch::ones_like(batch.data);
                 accelerator.backward(one(x).sum() + two(x).sum());
                 optimizer.step();
                 optimizer.zero_grad();
               }
             }
             CHECK(first->w.item<double>() == doctest::Approx(-2.0));
             CHECK(second->w.equal(first->w));
             for (int micro = 0; micro < 2; ++micro) {
               auto window = accelerator.accumulate(one, two);
               accelerator.backward(one(full(static_cast<double>(accelerator.process_index()))).sum());
               optimizer.step();
               optimizer.zero_grad();
             }
             CHECK(first->w.item<double>() == doctest::Approx(-2.5));
           },
           {.gradient_accumulation_steps = 2, .even_batches = false});
}

TEST_CASE("ranks with different numbers of batches join until all are done, and end equal") {
  // 3 samples, batches of one: rank 0 has two, rank 1 one (behaviour.md section 4).
  on_ranks(
      2,
      [](Accelerator& accelerator) {
        OneWeight net;
        auto [model, optimizer, loader] =
            accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0), counting(3, 1));
        CHECK(loader.size() == (accelerator.is_main_process() ? 2 : 1));
        {
          auto join = accelerator.join_uneven_inputs(model);
          for (auto& batch : loader) {
            optimizer.zero_grad();
            accelerator.backward(model(torch::ones_like(batch.data)).sum());
            optimizer.step();
          }
        }
        CHECK(net->w.item<double>() == doctest::Approx(-1.5));  // 2/2, then 1/2: divided by all ranks, as PyTorch does
      },
      {.even_batches = false});
}

TEST_CASE("a rank that left a join keeps no gradient of the others, for any position of zero_grad()") {
  // PyTorch 2.11's Join with DistributedDataParallel: 0.7 after the first epoch, 0.4 after the second.
  for (const bool zero_first : {true, false}) {
    on_ranks(2, [zero_first](Accelerator& accelerator) {
      OneWeight net(1.0);
      auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
      for (int epoch = 1; epoch <= 2; ++epoch) {
        auto join = accelerator.join_uneven_inputs(model);
        for (int64_t step = 0; step <= accelerator.process_index(); ++step) {
          if (zero_first) optimizer.zero_grad();
          accelerator.backward(model(full(1.0 + static_cast<double>(accelerator.process_index() + step))).sum());
          optimizer.step();
          if (!zero_first) optimizer.zero_grad();
        }
        join.finish();
        CHECK(net->w.item<double>() == doctest::Approx(1.0 - 0.3 * epoch).epsilon(1e-12));
        if (accelerator.is_main_process()) CHECK_FALSE(net->w.grad().defined());
      }
    });
  }
}
