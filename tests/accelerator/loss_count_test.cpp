// SPDX-License-Identifier: Apache-2.0
// Losses that are sums over samples or tokens: divided by the count of the whole window on all ranks.
#include "tests/testing.hpp"
//
#include <future>

#include "tests/accelerator/ranks.hpp"

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using accelerate::LossCount;

namespace {

const auto f64 = torch::dtype(torch::kDouble);

// Tokens of each rank in each micro-batch; one has none.
const std::vector<std::vector<int64_t>> tokens{{3, 1, 4, 2, 6, 5}, {5, 9, 2, 7, 0, 1}};

/// [n, 3] inputs of a rank's micro-batch, equal on every caller.
torch::Tensor inputs(int64_t rank, int64_t micro) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(100 * rank + micro + 1));
  return torch::randn({tokens.at(static_cast<size_t>(rank)).at(static_cast<size_t>(micro)), 3}, generator, f64);
}

struct TwoLayersImpl : torch::nn::Module {
  TwoLayersImpl() {
    first = register_parameter("first", torch::linspace(-1, 1, 12, f64).view({3, 4}));
    second = register_parameter("second", torch::linspace(0.5, -1, 4, f64).view({4, 1}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return x.mm(first).tanh().mm(second); }
  torch::Tensor first, second;
};
TORCH_MODULE(TwoLayers);

torch::Tensor sum_loss(const torch::Tensor& out) { return (out - 1).pow(2).sum(); }

/// Gradients of the mean loss over all tokens of these micro-batches, in one batch.
std::vector<torch::Tensor> one_batch(int64_t ranks, int64_t begin, int64_t end) {
  std::vector<torch::Tensor> all;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    for (int64_t micro = begin; micro < end; ++micro) all.push_back(inputs(rank, micro));
  }
  TwoLayers net;
  const auto batch = torch::cat(all);
  (sum_loss(net(batch)) / batch.size(0)).backward();
  return {net->first.grad(), net->second.grad()};
}

double apart(const std::vector<torch::Tensor>& ours, const std::vector<torch::Tensor>& theirs) {
  double worst = 0;
  for (size_t i = 0; i < ours.size(); ++i) worst = std::max(worst, (ours[i] - theirs[i]).abs().max().item<double>());
  return worst;
}

LossCount as_tokens(int64_t count) { return {.tokens = count}; }
LossCount as_samples(int64_t count) { return {.samples = count}; }

/// Compares each window's gradients with those of one batch, for six micro-batches of a loader.
void check_windows(int64_t ranks, LossCount (*counted)(int64_t), const AcceleratorOptions& options) {
  on_ranks(
      ranks,
      [&](Accelerator& accelerator) {
        TwoLayers net;
        auto [model, optimizer, loader] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.0),
                                                              counting(6 * accelerator.num_processes(), 1));
        int64_t micro = 0, begin = 0;
        for ([[maybe_unused]] auto& batch : loader) {
          auto window = accelerator.accumulate(model);
          const auto x = inputs(accelerator.process_index(), micro++);
          accelerator.backward(sum_loss(model(x)), counted(x.size(0)));
          if (accelerator.sync_gradients()) {
            CHECK(apart({net->first.grad(), net->second.grad()}, one_batch(ranks, begin, micro)) < 1e-12);
            begin = micro;
          }
          optimizer.step();
          optimizer.zero_grad();
        }
        CHECK(begin == 6);
      },
      options);
}

}  // namespace

TEST_CASE("a window of summed losses has the gradients of one batch of all its tokens or samples") {
  for (const auto counted : {as_tokens, as_samples}) {
    for (const int64_t ranks : {1, 2}) {
      for (const int64_t k : {1, 2, 4, 6}) {
        CAPTURE(ranks);
        CAPTURE(k);
        check_windows(ranks, counted, {.gradient_accumulation_steps = k});
        check_windows(ranks, counted, {.gradient_accumulation_steps = k, .accumulation = {.sync_each_batch = true}});
        check_windows(
            ranks, counted,
            {.gradient_accumulation_steps = k, .accumulation = {.short_window = accelerate::ShortWindow::full_length}});
      }
    }
  }
}

TEST_CASE("a loop without accumulate() divides each loss by the samples of all ranks") {
  on_ranks(2, [](Accelerator& accelerator) {
    TwoLayers net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.0));
    for (int64_t micro = 0; micro < 6; ++micro) {
      const auto x = inputs(accelerator.process_index(), micro);
      accelerator.backward(sum_loss(model(x)), {.samples = x.size(0)});
      CHECK(apart({net->first.grad(), net->second.grad()}, one_batch(2, micro, micro + 1)) < 1e-12);
      optimizer.step();
      optimizer.zero_grad();
    }
  });
}

TEST_CASE("no rank waits for a peer before its window's last micro-batch") {
  std::promise<void> first_is_there;
  auto there = first_is_there.get_future();
  on_ranks(2,
           [&](Accelerator& accelerator) {
             TwoLayers net;
             auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.0));
             for (int64_t micro = 0; micro < 4; ++micro) {
               // Rank 1 begins after rank 0 has ended three micro-batches, so a reduction in them would never end.
               if (micro == 0 && !accelerator.is_main_process()) there.wait();
               if (micro == 3 && accelerator.is_main_process()) first_is_there.set_value();
               auto window = accelerator.accumulate(model);
               const auto x = inputs(accelerator.process_index(), micro);
               accelerator.backward(sum_loss(model(x)), {.tokens = x.size(0)});
               optimizer.step();
               optimizer.zero_grad();
             }
           },
           {.gradient_accumulation_steps = 4});
}

TEST_CASE("a window of no tokens on any rank leaves zeros, not NaN") {
  on_ranks(2, [](Accelerator& accelerator) {
    TwoLayers net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.0));
    accelerator.backward(sum_loss(model(torch::zeros({0, 3}, f64))), {.tokens = 0});
    CHECK(net->first.grad().abs().max().item<double>() == 0);
  });
}

TEST_CASE("ambiguous loss counts are refused") {
  Accelerator accelerator({.cpu = true, .gradient_accumulation_steps = 2});
  TwoLayers net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.0));
  const auto loss = [&, &model = model] { return sum_loss(model(torch::ones({3, 3}, f64))); };
  CHECK_THROWS_WITH(accelerator.backward(loss(), LossCount{.samples = 1, .tokens = 3}),
                    doctest::Contains("backward: the loss is a sum over 1 samples and 3 tokens; give one of them"));
  CHECK_THROWS_WITH(accelerator.backward(loss(), LossCount{}),
                    doctest::Contains("backward: the loss has a count without samples or tokens; give one of them, or "
                                      "no count where it is a mean"));
  CHECK_THROWS_WITH(accelerator.backward(loss(), {.tokens = -1}),
                    doctest::Contains("backward: the loss is a sum over -1 tokens, must be at least 0"));
  {
    auto window = accelerator.accumulate(model);
    accelerator.backward(loss(), {.tokens = 3});
    CHECK_THROWS_WITH(accelerator.backward(loss(), {.tokens = 4}),
                      doctest::Contains("backward: a second loss of this micro-batch is a sum, over 4 tokens, the "
                                        "window's count is 3; add the losses up and call backward once"));
  }
  auto window = accelerator.accumulate(model);
  CHECK_THROWS_WITH(accelerator.backward(loss(), {.samples = 3}),
                    doctest::Contains("backward: this loss counts samples, the others of its accumulation window "
                                      "tokens; count all losses of a window in one unit"));
  CHECK_THROWS_WITH(accelerator.backward(loss()),
                    doctest::Contains("backward: this loss counts means, the others of its accumulation window tokens; "
                                      "count all losses of a window in one unit"));
  CHECK_THROWS_WITH(
      optimizer.step(),
      doctest::Contains("optimizer.step: the gradients are sums over 3 tokens of 1 micro-batches, not yet "
                        "divided: the window's last backward did not run; run it in every micro-batch"));
}

TEST_CASE("a summed loss is refused within no_sync() and after a rank left a join") {
  on_ranks(2, [](Accelerator& accelerator) {
    TwoLayers net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.0));
    const auto x = torch::ones({3, 3}, f64);
    {
      auto local = accelerator.no_sync(model);
      CHECK_THROWS_WITH(accelerator.backward(sum_loss(model(x)), {.tokens = 3}),
                        doctest::Contains("backward: the loss is a sum over 3 tokens, to be divided at the end of a "
                                          "window; no_sync() and local SGD have none, use accumulate()"));
    }
    optimizer.zero_grad();
    auto join = accelerator.join_uneven_inputs(model);
    CHECK_THROWS_WITH(accelerator.backward(sum_loss(model(x)), {.samples = 3}),
                      doctest::Contains("backward: the loss is a sum over 3 samples, to be divided by what all ranks "
                                        "count, and those that have left join_uneven_inputs() do not; take losses that "
                                        "are means"));
  });
}
