// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <random>

#include "accelerate/data/loader.hpp"
#include "accelerate/data/loader_state.hpp"
#include "accelerate/data/stream_loader.hpp"
#include "tests/data/passes.hpp"

using namespace accelerate::data;
using accelerate::state::LoaderState;
using sources::Batches;
using sources::list;
using sources::Numbers;
using sources::pass;
using sources::Positions;

namespace {

/// 0, 1 ... n-1; fails before sample `bad`.
StreamPtr<int64_t> counting_stream(int64_t n, std::optional<int64_t> size = {}, int64_t bad = -1) {
  return make_stream(
      [=] {
        return [=, next = int64_t{0}]() mutable -> std::optional<int64_t> {
          if (next == bad) throw std::runtime_error("the line is dead");
          return next < n ? std::optional(next++) : std::nullopt;
        };
      },
      size);
}

Batches of(int64_t samples, int64_t batch_size, const Share& share, bool drop_last = false) {
  StreamLoader loader(counting_stream(samples, samples), {.batch_size = batch_size, .drop_last = drop_last});
  loader.shard(share);
  const auto batches = pass(loader);
  CHECK(loader.size() == static_cast<int64_t>(batches.size()));
  return batches;
}

}  // namespace

// Accelerate 1.15's IterableDatasetShard.
TEST_CASE("each rank keeps its part of every window, and the last window is filled from the first") {
  CHECK(of(10, 4, {.rank = 0, .world_size = 2}) == Batches{{0, 1, 2, 3}, {8, 9, 0, 1}});
  CHECK(of(10, 4, {.rank = 1, .world_size = 2}) == Batches{{4, 5, 6, 7}, {2, 3, 4, 5}});
  CHECK(of(10, 4, {.rank = 1, .world_size = 2}, true) == Batches{{4, 5, 6, 7}});
  CHECK(of(10, 4, {.rank = 0, .world_size = 2, .split_batches = true}) == Batches{{0, 1}, {4, 5}, {8, 9}});
  CHECK(of(10, 4, {.rank = 1, .world_size = 2, .split_batches = true}) == Batches{{2, 3}, {6, 7}, {0, 1}});
  CHECK(of(10, 4, {.rank = 1, .world_size = 2, .split_batches = true}, true) == Batches{{2, 3}, {6, 7}});
  CHECK(of(2, 4, {.rank = 1, .world_size = 2}) == Batches{{0, 1, 0, 1}});
  CHECK(of(2, 4, {.rank = 1, .world_size = 2, .split_batches = true}) == Batches{{0, 1}});
  CHECK(of(16, 4, {.rank = 2, .world_size = 3}) == Batches{{8, 9, 10, 11}, {4, 5, 6, 7}});
  CHECK(of(13, 6, {.rank = 2, .world_size = 3, .split_batches = true}) == Batches{{4, 5}, {10, 11}, {3, 4}});
  CHECK(of(10, 4, {.rank = 0, .world_size = 3}, true).empty());
}

TEST_CASE("a stream is shared out as numbered samples are, whatever its length, which nobody told it") {
  std::mt19937 random(3);
  const auto pick = [&](int64_t from, int64_t to) { return std::uniform_int_distribution<int64_t>(from, to)(random); };
  for (int i = 0; i < 2000; ++i) {
    const int64_t samples = pick(0, 50);
    const int64_t world = pick(1, 4);
    Share share{.rank = pick(0, world - 1),
                .world_size = world,
                .even_batches = pick(0, 2) > 0,
                .split_batches = pick(0, 2) == 0};
    const int64_t batch_size = pick(1, 5) * (share.split_batches ? world : 1);
    const bool drop_last = pick(0, 3) == 0;
    LoaderOf<at::Tensor> numbered(std::make_shared<Positions>(samples),
                                  {.batch_size = batch_size, .drop_last = drop_last});
    StreamLoader stream(counting_stream(samples), {.batch_size = batch_size, .drop_last = drop_last});
    numbered.shard(share);
    stream.shard(share);
    auto expected = numbered.begin();
    int64_t steps = 0;
    for (auto position = stream.begin(); position != stream.end(); ++position, ++expected, ++steps) {
      REQUIRE(expected != numbered.end());
      CHECK(list(*position) == list(*expected));
      CHECK(position.info().index == expected.info().index);
      CHECK(position.info().last == expected.info().last);
      if (position.info().last && world > 1) CHECK(position.info().remainder == expected.info().remainder);
      CHECK(stream.state().epoch == numbered.state().epoch);
      CHECK(stream.state().consumed == numbered.state().consumed);
    }
    CHECK(expected == numbered.end());
    CHECK(stream.epoch() == 1);
    CHECK_FALSE(stream.size());
    if (steps < 2) continue;

    const int64_t seen = pick(1, steps - 1);  // interrupted, and resumed by a new process
    stream.set_epoch(0);
    (void)pass(stream, seen);
    const nlohmann::json saved = stream.state();
    StreamLoader resumed(counting_stream(samples), {.batch_size = batch_size, .drop_last = drop_last});
    resumed.shard(share);
    resumed.load_state(loader_state_from_json(saved));
    numbered.set_epoch(0);
    const auto all = pass(numbered);
    CHECK(pass(resumed) == Batches(all.begin() + seen, all.end()));
    CHECK(pass(resumed) == all);
  }
}

TEST_CASE("resumed on other ranks a stream's samples that follow are shared out anew") {
  StreamLoader two(counting_stream(20), {.batch_size = 2});
  two.shard({.rank = 1, .world_size = 2});
  (void)pass(two, 2);
  CHECK(two.state().consumed == 8);
  StreamLoader one(counting_stream(20), {.batch_size = 4});
  one.load_state(two.state());
  CHECK(pass(one) == Batches{{8, 9, 10, 11}, {12, 13, 14, 15}, {16, 17, 18, 19}});
}

TEST_CASE("a random stream is told seed and epoch") {
  std::vector<std::pair<uint64_t, int64_t>> told;
  const auto stream = make_stream(
      [&](const ReadContext& context) {
        told.emplace_back(context.seed, context.epoch);
        return [left = 2]() mutable -> std::optional<int64_t> { return left-- > 0 ? std::optional(7) : std::nullopt; };
      },
      2, /*seeded=*/true);
  StreamLoader loader(stream, {.seed = 5});
  CHECK(loader.shuffles());
  (void)pass(loader);
  loader.set_epoch(4);
  (void)pass(loader);
  CHECK(told == std::vector<std::pair<uint64_t, int64_t>>{{5, 0}, {5, 4}});
}

TEST_CASE("what a stream throws comes after the batches before it") {
  StreamLoader loader(counting_stream(20, {}, 9), {.batch_size = 2});
  loader.shard({.rank = 0, .world_size = 2});
  Batches seen;
  bool last = false;
  auto position = loader.begin();
  const auto walk = [&] {
    for (; position != loader.end(); ++position) {
      seen.push_back(list(*position));
      last = position.info().last;
    }
  };
  CHECK_THROWS_WITH(walk(), "the line is dead");
  CHECK(seen == Batches{{0, 1}, {4, 5}});
  CHECK_FALSE(last);
}

TEST_CASE("samples of any kind are collated, by default or by a function") {
  using Sample = std::pair<at::Tensor, std::string>;
  const auto stream = make_stream([] {
    return [next = 0]() mutable -> std::optional<Sample> {
      ++next;
      return next > 3 ? std::nullopt : std::optional<Sample>({torch::full({2}, next), std::to_string(next)});
    };
  });
  StreamLoader loader(stream, {.batch_size = 3});
  auto position = loader.begin();
  CHECK(position->first.equal(torch::tensor({{1, 1}, {2, 2}, {3, 3}})));
  CHECK(position->second == std::vector<std::string>{"1", "2", "3"});
  StreamLoader counted(stream, StreamOptions{.batch_size = 2}, [](const std::vector<Sample>& samples) {
    return torch::tensor(static_cast<int64_t>(samples.size()));
  });
  CHECK(pass(counted) == Batches{{2}, {1}});
}

TEST_CASE("wrong loaders of streams are refused, with the values") {
  CHECK_THROWS_WITH(StreamLoader(counting_stream(1), {.batch_size = 0}), "loader: batch_size is 0, must be at least 1");
  StreamLoader loader(counting_stream(9, 9), {.batch_size = 3});
  CHECK_THROWS_WITH(loader.shard({.world_size = 2, .split_batches = true}),
                    "shard: split_batches: batch_size is 3, must be a round multiple of the 2 ranks; 4 would be one");
  CHECK_THROWS_WITH(loader.set_epoch(-1), "set_epoch: epoch is -1, must be at least 0");
  CHECK_THROWS_WITH(loader.load_state({.consumed = -1}), "load_state: consumed is -1, must be at least 0");
  CHECK_THROWS_WITH(loader.load_state({.consumed = 10, .samples = 9}),
                    "load_state: consumed is 10, must be at most the samples, 9");
  CHECK_THROWS_WITH(loader.load_state({.samples = -2}), "load_state: samples is -2, must be at least -1");
  CHECK_THROWS_WITH(loader.load_state({.consumed = 3, .samples = 12}),
                    "load_state: the state is of a stream of 12 samples, this one has 9 (-1: not known)");
}
