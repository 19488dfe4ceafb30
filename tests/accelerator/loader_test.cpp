// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include "accelerate/data/stream_loader.hpp"
#include "tests/accelerator/ranks.hpp"

using accelerate::Accelerator;
using Batches = std::vector<std::vector<int64_t>>;

namespace {

struct Seen {
  std::vector<Batches> ranks;
  std::vector<int64_t> gathered;
};

template <typename MakeLoader>
Seen walk(int64_t ranks, const MakeLoader& make_loader, const accelerate::AcceleratorOptions& options = {}) {
  Seen seen{std::vector<Batches>(static_cast<size_t>(ranks)), {}};
  on_ranks(
      ranks,
      [&](Accelerator& accelerator) {
        auto loader = accelerator.prepare(make_loader());
        for (auto& batch : loader) {
          seen.ranks[static_cast<size_t>(accelerator.process_index())].push_back(numbers(batch.data));
          const auto all = numbers(accelerator.gather_for_metrics(batch.data));
          if (accelerator.is_main_process()) seen.gathered.insert(seen.gathered.end(), all.begin(), all.end());
        }
      },
      options);
  return seen;
}

}  // namespace

TEST_CASE("gather_for_metrics returns every sample once for any padding of the last batch") {
  const auto two = walk(2, [] { return counting(10, 2); });
  CHECK(two.ranks[0] == Batches{{0, 1}, {4, 5}, {8, 9}});
  CHECK(two.ranks[1] == Batches{{2, 3}, {6, 7}, {0, 1}});
  CHECK(two.gathered == up_to(10));
  CHECK(walk(2, [] { return counting(13, 4); }).gathered == up_to(13));
  CHECK(walk(2, [] { return counting(12, 2); }).gathered == up_to(12));
  CHECK(walk(3, [] { return counting(13, 4); }).gathered == up_to(13));
  CHECK(walk(2, [] { return counting(1, 4); }).gathered == up_to(1));
  CHECK(walk(2, [] { return counting(13, 2, {.drop_last = true}); }).gathered == up_to(12));
  CHECK(walk(1, [] { return counting(7, 2); }).gathered == up_to(7));
  CHECK(walk(4, [] { return counting(99, 16); }).gathered == up_to(99));
  CHECK(walk(2, [] { return counting(82, 16); }).gathered == up_to(82));
  CHECK(walk(2, [] { return counting(512, 16); }).gathered == up_to(512));
}

TEST_CASE("without even_batches the ragged last batches are gathered unchanged") {
  for (int64_t ranks = 1; ranks <= 4; ++ranks) {
    for (int64_t batch_size = 1; batch_size <= 3; ++batch_size) {
      for (int64_t rounds = 1; rounds <= 3; ++rounds) {
        for (int64_t missing = 0; missing < batch_size; ++missing) {  // all ranks have a batch in every round
          const int64_t samples = ranks * batch_size * rounds - missing;
          CAPTURE(ranks);
          CAPTURE(samples);
          const auto seen = walk(ranks, [&] { return counting(samples, batch_size); }, {.even_batches = false});
          CHECK(seen.gathered == up_to(samples));
        }
      }
    }
  }
}

TEST_CASE("the last batch is known in every pass, and loops nest") {
  Accelerator accelerator({.cpu = true});
  auto [outer, inner] = accelerator.prepare(counting(4, 1), counting(2, 1));
  for (int pass = 0; pass < 2; ++pass) {
    std::vector<bool> ends;
    for (auto position = outer.begin(); position != outer.end(); ++position) ends.push_back(position.info().last);
    CHECK(ends == std::vector<bool>{false, false, false, true});
  }
  // accumulate() uses the innermost open loop, and afterwards the outer one again.
  accelerator.set_gradient_accumulation_steps(100);
  std::vector<bool> syncs;
  for ([[maybe_unused]] auto& batch : outer) {
    for ([[maybe_unused]] auto& part : inner) {
      auto window = accelerator.accumulate();
      syncs.push_back(accelerator.sync_gradients());
    }
    auto window = accelerator.accumulate();
    syncs.push_back(accelerator.sync_gradients());
  }
  CHECK(syncs == std::vector<bool>{false, true, false, false, true, false, false, true, false, false, true, true});
}

TEST_CASE("each of two nested loaders detects its own end: 80 and 96 samples in batches of 16") {
  Accelerator accelerator({.cpu = true});
  auto [outer, inner] = accelerator.prepare(counting(80, 16), counting(96, 16));
  std::vector<bool> ends, inner_ends;
  for (auto position = outer.begin(); position != outer.end(); ++position) {
    if (ends.size() == 1) {
      for (auto part = inner.begin(); part != inner.end(); ++part) inner_ends.push_back(part.info().last);
    }
    ends.push_back(position.info().last);
  }
  CHECK(ends == std::vector<bool>{false, false, false, false, true});
  CHECK(inner_ends == std::vector<bool>{false, false, false, false, false, true});
}

TEST_CASE("a loop that breaks early closes, and the next one starts a new pass") {
  Accelerator accelerator({.cpu = true});
  auto loader = accelerator.prepare(counting(4, 1));
  for (auto position = loader.begin(); position != loader.end(); ++position) break;
  int64_t batches = 0;
  for ([[maybe_unused]] auto& batch : loader) ++batches;
  CHECK(batches == 4);
  accelerator.set_gradient_accumulation_steps(2);
  auto window = accelerator.accumulate();
  CHECK_FALSE(accelerator.sync_gradients());  // no loop is open
}

TEST_CASE("an exception in the loop's body closes the loop, and the next pass is complete, for any loader") {
  const auto stream = [] {
    const auto samples = accelerate::data::make_stream([] {
      return [next = int64_t{0}]() mutable -> std::optional<int64_t> {
        return next < 16 ? std::optional(next++) : std::nullopt;
      };
    });
    return accelerate::data::StreamLoader(samples, {.batch_size = 2});
  };
  const auto body = [&](Accelerator& accelerator) {
    const auto check = [](auto loader) {
      const auto walk = [&](int64_t most) {
        int64_t batches = 0;
        for ([[maybe_unused]] auto& batch : loader) {
          if (++batches == most) throw std::runtime_error("of the body");
        }
        return batches;
      };
      CHECK_THROWS_WITH(walk(2), "of the body");
      CHECK(loader.info() == accelerate::state::BatchInfo{});
      CHECK(walk(-1) == 4);
      CHECK(walk(-1) == 4);
    };
    check(accelerator.prepare(counting(16, 2)));
    check(accelerator.prepare(counting(16, 2, {.num_workers = 2})));
    check(accelerator.prepare(stream()));
    check(accelerator.prepare(std::vector<torch::Tensor>(8, torch::zeros({2}))));
  };
  for (const bool dispatch : {false, true}) on_ranks(2, body, {.dispatch_batches = dispatch});
}

TEST_CASE("set_even_batches applies to loaders that are prepared after it") {
  on_ranks(2, [](Accelerator& accelerator) {
    const auto batches = [&] {
      auto loader = accelerator.prepare(counting(5, 1));
      int64_t count = 0;
      for ([[maybe_unused]] auto& batch : loader) ++count;
      return count;
    };
    accelerator.set_even_batches(false);
    CHECK(batches() == (accelerator.is_main_process() ? 3 : 2));
    accelerator.set_even_batches(true);
    CHECK(batches() == 3);
  });
}

TEST_CASE("on the CPU batches are not copied") {
  struct Noted final : accelerate::data::Source {
    [[nodiscard]] int64_t size() const override { return 6; }
    [[nodiscard]] accelerate::data::Batch read(const at::Tensor& indices) const override {
      accelerate::data::Batch made{indices.to(torch::kDouble), indices.clone()};
      places.emplace_back(made.data.const_data_ptr(), made.target.const_data_ptr());
      return made;
    }
    mutable std::vector<std::pair<const void*, const void*>> places;
  };
  Accelerator accelerator({.cpu = true});
  const auto source = std::make_shared<Noted>();
  auto loader = accelerator.prepare(accelerate::data::Loader(source, {.batch_size = 2}));
  size_t step = 0;
  for (auto& batch : loader) {
    CHECK(batch.data.const_data_ptr() == source->places.at(step).first);
    CHECK(batch.target.const_data_ptr() == source->places.at(step++).second);
  }
  CHECK(step == 3);
  std::vector<torch::Tensor> batches{torch::zeros(2), torch::ones(2)};
  auto foreign = accelerator.prepare(batches);
  step = 0;
  for (auto& batch : foreign) CHECK(batch.const_data_ptr() == batches.at(step++).const_data_ptr());
  CHECK(step == 2);
}

TEST_CASE("skip_first_batches does not read the skipped batches") {
  struct Counted final : accelerate::data::Source {
    [[nodiscard]] int64_t size() const override { return 12; }
    [[nodiscard]] accelerate::data::Batch read(const at::Tensor& indices) const override {
      for (const int64_t i : numbers(indices)) ++reads[static_cast<size_t>(i)];
      return {indices.clone(), indices.clone()};
    }
    mutable std::vector<int> reads = std::vector<int>(12, 0);
  };
  for (const bool dispatch : {false, true}) {
    on_ranks(2,
             [&](Accelerator& accelerator) {
               const auto source = std::make_shared<Counted>();
               auto loader = accelerator.prepare(accelerate::data::Loader(source, {.batch_size = 2}));
               std::vector<int64_t> mine;
               for (auto& batch : accelerator.skip_first_batches(loader, 2)) mine = numbers(batch.data);
               const bool first = accelerator.is_main_process();
               CHECK(mine == (first ? std::vector<int64_t>{8, 9} : std::vector<int64_t>{10, 11}));
               std::vector<int> expected(12, 0);
               if (first) expected[8] = expected[9] = 1;
               if (dispatch ? first : !first) expected[10] = expected[11] = 1;
               CHECK(source->reads == expected);
             },
             {.dispatch_batches = dispatch});
  }
}

TEST_CASE("a foreign loader can report the number of samples per step of all ranks") {
  struct Batched {
    std::vector<torch::Tensor> batches = std::vector<torch::Tensor>(4, torch::zeros({6}));
    auto begin() { return batches.begin(); }
    auto end() { return batches.end(); }
    [[nodiscard]] int64_t total_batch_size() const { return 6; }
  };
  for (const bool split : {false, true}) {
    for (const bool dispatch : {false, true}) {
      on_ranks(2,
               [&](Accelerator& accelerator) {
                 CHECK(accelerator.prepare(Batched{}).total_batch_size() == (split ? 6 : 12));
               },
               {.split_batches = split, .dispatch_batches = dispatch});
    }
  }
}

TEST_CASE("a shuffled loader has one order on all ranks, seeded like PyTorch's") {
  const auto seen = walk(2, [] { return counting(16, 2, {.shuffle = true, .seed = 42}); });
  CHECK(seen.ranks[0] == Batches{{6, 3}, {10, 15}, {14, 9}, {4, 13}});
  CHECK(seen.ranks[1] == Batches{{0, 7}, {2, 12}, {8, 5}, {11, 1}});
}

TEST_CASE("a distributed sampler is sharded once, and gather_for_metrics removes its padding") {
  using accelerate::data::distributed_sampler;
  const auto seen = walk(2, [] { return counting(8, 2, {.seed = 42, .sampler = distributed_sampler(8)}); });
  CHECK(seen.ranks[0] == Batches{{6, 0}, {2, 4}});  // randperm with seed 42: 6 3 0 7 2 1 4 5
  CHECK(seen.ranks[1] == Batches{{3, 7}, {1, 5}});
  for (const int64_t ranks : {1, 2, 3, 4}) {
    for (const int64_t samples : {1, 2, 7, 10, 13}) {
      for (const int64_t batch_size : {1, 2, 3}) {
        auto all = walk(ranks, [=] {
                     return counting(samples, batch_size, {.sampler = distributed_sampler(samples, {.seed = 7})});
                   }).gathered;
        std::sort(all.begin(), all.end());
        CHECK(all == up_to(samples));
      }
    }
  }
  on_ranks(2, [](Accelerator& accelerator) {
    auto loader = accelerator.prepare(counting(5, 2, {.sampler = distributed_sampler(5, {.shuffle = false})}));
    std::vector<std::string> names;
    for (auto& batch : loader) {
      std::vector<std::string> mine;
      for (const int64_t number : numbers(batch.target)) mine.push_back(std::to_string(number));
      for (const auto& name : accelerator.gather_for_metrics(mine)) names.push_back(name);
    }
    CHECK(names == std::vector<std::string>{"0", "2", "1", "3", "4"});
    CHECK_THROWS_WITH_AS(
        (void)accelerator.prepare(counting(8, 2, {.sampler = distributed_sampler(8, {.num_replicas = 4, .rank = 3})})),
        doctest::Contains("loader: its distributed_sampler is for rank 3 of 4, the loader reads for"),
        accelerate::Error);
  });
}

TEST_CASE("a foreign loader is sharded by batches and padded with whole batches") {
  using Example = torch::data::Example<>;
  const auto make = [] {
    std::vector<Example> batches;
    for (int64_t first = 0; first < 10; first += 2) {
      batches.emplace_back(torch::arange(first, first + 2, torch::kDouble), torch::arange(first, first + 2));
    }
    batches.emplace_back(torch::arange(10, 11, torch::kDouble), torch::arange(10, 11));
    batches.emplace_back(torch::arange(11, 13, torch::kDouble), torch::arange(11, 13));
    return batches;
  };
  const auto seen = walk(3, make);
  CHECK(seen.ranks[0] == Batches{{0, 1}, {6, 7}, {11, 12}});
  CHECK(seen.ranks[1] == Batches{{2, 3}, {8, 9}, {0, 1}});
  CHECK(seen.ranks[2] == Batches{{4, 5}, {10}, {2, 3}});
  CHECK(seen.gathered == up_to(13));
}

TEST_CASE("without even_batches a foreign loader's last round is short, and nothing is removed") {
  on_ranks(2,
           [](Accelerator& accelerator) {
             std::vector<torch::Tensor> batches;
             for (int64_t i = 0; i < 3; ++i) batches.push_back(torch::full({2}, i));
             auto loader = accelerator.prepare(batches);
             std::vector<int64_t> mine, remainders;
             for (auto position = loader.begin(); position != loader.end(); ++position) {
               mine.push_back((*position)[0].item<int64_t>());
               if (position.info().last) remainders.push_back(position.info().remainder);
             }
             CHECK(mine == (accelerator.is_main_process() ? std::vector<int64_t>{0, 2} : std::vector<int64_t>{1}));
             CHECK(remainders == std::vector<int64_t>{0});
           },
           {.even_batches = false});
}

TEST_CASE("LibTorch's TensorDataset, which has no targets, is sharded too") {
  const auto seen = walk(2, [] {
    return torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
        torch::data::datasets::TensorDataset(torch::arange(8).unbind())
            .map(torch::data::transforms::Stack<torch::data::TensorExample>()),
        2);
  });
  CHECK(seen.ranks[0] == Batches{{0, 1}, {4, 5}});
  CHECK(seen.ranks[1] == Batches{{2, 3}, {6, 7}});
}

TEST_CASE("a torch::data loader is iterated in place") {
  struct Counting : torch::data::Dataset<Counting> {
    torch::data::Example<> get(size_t index) override {
      return {torch::full({1}, static_cast<double>(index)),
              torch::full({1}, static_cast<int64_t>(index), torch::kLong)};
    }
    std::optional<size_t> size() const override { return 6; }
  };
  const auto seen = walk(2, [] {
    return torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
        Counting().map(torch::data::transforms::Stack<>()), 2);
  });
  CHECK(seen.ranks[0] == Batches{{0, 1}, {4, 5}});
  CHECK(seen.ranks[1] == Batches{{2, 3}, {0, 1}});
  CHECK(seen.gathered == up_to(6));
}
