// SPDX-License-Identifier: Apache-2.0
// join_uneven_inputs over loaders with a different number of batches per rank. The including file defines
// void with_ranks(const accelerate::AcceleratorOptions&, const std::function<void(accelerate::Accelerator&)>&).
#pragma once

#include <numeric>

#include "accelerate/data/shard.hpp"
#include "accelerate/data/stream_loader.hpp"
#include "tests/accelerator/ranks.hpp"

namespace uneven {

using accelerate::Accelerator;
using Batches = std::vector<std::vector<int64_t>>;

/// Batches of each rank without padding.
inline std::vector<Batches> shares(int64_t samples, int64_t batch_size, int64_t ranks) {
  std::vector<int64_t> order(static_cast<size_t>(samples));
  std::iota(order.begin(), order.end(), 0);
  std::vector<Batches> all;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    all.push_back(accelerate::data::shard(
        order, {.rank = rank, .world_size = ranks, .batch_size = batch_size, .even_batches = false}));
  }
  return all;
}

/// The weight after a pass, computed without tensors: SGD with rate 0.001 on the mean of (w x - 3 x)^2. Each step's
/// gradient is the sum over the ranks with a batch, divided by the number of all ranks.
inline double trained_by_hand(const std::vector<Batches>& ranks) {
  double w = 0;
  for (size_t step = 0;; ++step) {
    double gradient = 0;
    bool any = false;
    for (const Batches& batches : ranks) {
      if (step >= batches.size()) continue;
      any = true;
      for (const int64_t x : batches[step]) {
        gradient += 2 * (w - 3) * static_cast<double>(x * x) / static_cast<double>(batches[step].size());
      }
    }
    if (!any) return w;
    w -= 0.001 * gradient / static_cast<double>(ranks.size());
  }
}

inline const torch::Tensor& data_of(const torch::Tensor& batch) { return batch; }
inline const torch::Tensor& data_of(const accelerate::data::Batch& batch) { return batch.data; }

/// One pass in a join; returns this rank's batches.
template <typename Model, typename Optimizer, typename Loader>
Batches train_joined(Accelerator& accelerator, Model& model, Optimizer& optimizer, Loader& loader) {
  Batches seen;
  auto join = accelerator.join_uneven_inputs(model);
  for (auto& batch : loader) {
    seen.push_back(numbers(data_of(batch)));
    const auto x = data_of(batch).to(torch::kDouble);
    optimizer.zero_grad();
    accelerator.backward((model(x) - 3 * x).pow(2).mean());
    optimizer.step();
  }
  return seen;
}

/// No rank hangs, each rank sees its shard, and all ranks end with the computed weight.
template <typename Loader>
void check_joined(Accelerator& accelerator, Loader&& loader, const std::vector<Batches>& expected) {
  OneWeight net;
  torch::optim::SGD sgd(net->parameters(), 0.001);
  auto [model, optimizer, prepared] = accelerator.prepare(net, sgd, std::forward<Loader>(loader));
  CHECK(train_joined(accelerator, model, optimizer, prepared) ==
        expected[static_cast<size_t>(accelerator.process_index())]);
  CHECK(net->w.item<double>() == doctest::Approx(trained_by_hand(expected)).epsilon(1e-12));
}

inline auto counting_stream(int64_t n) {
  return accelerate::data::make_stream([n] {
    return [n, next = int64_t{0}]() mutable -> std::optional<int64_t> {
      return next < n ? std::optional(next++) : std::nullopt;
    };
  });
}

/// Rank r has 1 + 2 r batches of its own.
struct OwnShare {
  std::vector<torch::Tensor> batches{};
  void shard(int64_t rank, int64_t) {
    for (int64_t i = 0; i < 1 + 2 * rank; ++i) batches.push_back(torch::arange(i, i + 2));
  }
  auto begin() { return batches.begin(); }
  auto end() { return batches.end(); }
};

}  // namespace uneven

TEST_CASE("ranks with different numbers of batches of different sizes join if even_batches is off") {
  with_ranks({.cpu = true, .even_batches = false}, [](accelerate::Accelerator& accelerator) {
    const int64_t ranks = accelerator.num_processes();
    for (const auto& [samples, batch_size] :
         std::vector<std::pair<int64_t, int64_t>>{{3, 1}, {7, 2}, {2, 4}, {13, 3}}) {
      uneven::check_joined(accelerator, counting(samples, batch_size), uneven::shares(samples, batch_size, ranks));
    }
    if (ranks == 2) {  // Accelerate's own cases
      CHECK(uneven::shares(3, 1, 2) == std::vector<uneven::Batches>{{{0}, {2}}, {{1}}});
      CHECK(uneven::shares(7, 2, 2) == std::vector<uneven::Batches>{{{0, 1}, {4, 5}}, {{2, 3}, {6}}});
    }
  });
}

TEST_CASE("ranks join if their streams end at different times") {
  with_ranks({.cpu = true, .even_batches = false, .dispatch_batches = false}, [](accelerate::Accelerator& accelerator) {
    for (const int64_t samples : {1, 7, 16}) {
      uneven::check_joined(accelerator,
                           accelerate::data::StreamLoader(uneven::counting_stream(samples), {.batch_size = 3}),
                           uneven::shares(samples, 3, accelerator.num_processes()));
    }
  });
}

TEST_CASE("a loader with a free number of batches per rank joins, twice") {
  with_ranks({.cpu = true}, [](accelerate::Accelerator& accelerator) {
    std::vector<uneven::Batches> expected;
    for (int64_t rank = 0; rank < accelerator.num_processes(); ++rank) {
      uneven::Batches& own = expected.emplace_back();
      for (int64_t i = 0; i < 1 + 2 * rank; ++i) own.push_back({i, i + 1});
    }
    for (int pass = 0; pass < 2; ++pass) uneven::check_joined(accelerator, uneven::OwnShare(), expected);
  });
}

TEST_CASE("a dispatched stream has equally many batches on every rank, so a join never waits") {
  with_ranks({.cpu = true, .even_batches = false}, [](accelerate::Accelerator& accelerator) {
    OneWeight net;
    torch::optim::SGD sgd(net->parameters(), 0.001);
    auto [model, optimizer, loader] =
        accelerator.prepare(net, sgd, accelerate::data::StreamLoader(uneven::counting_stream(13), {.batch_size = 2}));
    const auto mine = uneven::train_joined(accelerator, model, optimizer, loader);
    const auto steps = accelerator.gather(torch::tensor({static_cast<int64_t>(mine.size())}));
    CHECK(steps.eq(steps[0]).all().item<bool>());
    const auto weights = accelerator.gather(net->w.detach());
    CHECK(weights.eq(weights[0]).all().item<bool>());
  });
}
