// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "accelerate/data/batch_sharding.hpp"
#include "accelerate/data/shard.hpp"

using accelerate::RankContext;
using accelerate::data::BatchSharder;
using accelerate::data::BatchShardOptions;
using accelerate::data::shard;
using accelerate::data::shard_batches;
using accelerate::data::ShardOptions;
using accelerate::data::ShardPlan;
using Batches = std::vector<std::vector<int64_t>>;

namespace {

std::vector<int64_t> order(int64_t n) {
  std::vector<int64_t> samples(static_cast<size_t>(n));
  std::iota(samples.begin(), samples.end(), 0);
  return samples;
}

const nlohmann::json& cases() {
  static const auto all = nlohmann::json::parse(std::ifstream(TEST_SOURCE_DIR "/tests/data/shard_cases.json"));
  return all;
}

Batches batches_of(const Batches& all, const std::vector<int64_t>& numbers) {
  Batches mine;
  for (const int64_t number : numbers) mine.push_back(all.at(static_cast<size_t>(number)));
  return mine;
}

Batches fed_one_by_one(const Batches& all, const BatchShardOptions& options) {
  BatchSharder<std::vector<int64_t>> dealer(options);
  Batches mine;
  std::optional<std::vector<int64_t>> of_round;
  for (const auto& batch : all) {
    if (auto ready = dealer.feed(batch)) of_round = ready;
    if (dealer.round_complete() && of_round) mine.push_back(*std::exchange(of_round, std::nullopt));
  }
  if (auto last = dealer.finish(of_round)) mine.push_back(*last);
  return mine;
}

}  // namespace

TEST_CASE("even_batches pads the last batch from the front of the order") {
  const auto ten = order(10);
  const Batches rank0{{0, 1}, {4, 5}, {8, 9}};
  const Batches rank1{{2, 3}, {6, 7}, {0, 1}};
  CHECK(shard(ten, {.rank = 0, .world_size = 2, .batch_size = 2}) == rank0);
  CHECK(shard(ten, {.rank = 1, .world_size = 2, .batch_size = 2}) == rank1);
}

TEST_CASE("split_batches cuts every batch into a part for each rank") {
  const auto of = [](int64_t rank, int64_t n, bool drop_last, bool even_batches) {
    return shard(order(n), {.rank = rank,
                            .world_size = 2,
                            .batch_size = 4,
                            .split_batches = true,
                            .drop_last = drop_last,
                            .even_batches = even_batches});
  };
  CHECK(of(0, 9, false, true) == Batches{{0, 1}, {4, 5}, {8, 0}});
  CHECK(of(1, 9, false, true) == Batches{{2, 3}, {6, 7}, {1, 2}});
  CHECK(of(1, 9, true, true) == Batches{{2, 3}, {6, 7}});
  CHECK(of(1, 9, false, false) == Batches{{2, 3}, {6, 7}});
  CHECK(of(1, 2, false, true) == Batches{{0, 1}});
  const ShardPlan plan(9, {.rank = 1, .world_size = 2, .batch_size = 4, .split_batches = true});
  CHECK(plan.batch_size() == 2);
  CHECK(plan.remainder() == 1);
}

TEST_CASE("the tables of the behaviour reference hold: two ranks, batch 3") {
  struct Row {
    int64_t n;
    bool drop_last, even;
    Batches last_of_each_rank;  // the fourth batch of each rank; empty if there is none
  };
  const std::vector<Row> rows{
      {24, false, true, {{18, 19, 20}, {21, 22, 23}}},
      {24, true, true, {{18, 19, 20}, {21, 22, 23}}},
      {21, false, true, {{18, 19, 20}, {0, 1, 2}}},
      {22, false, true, {{18, 19, 20}, {21, 0, 1}}},
      {20, false, true, {{18, 19, 0}, {1, 2, 3}}},
      {21, true, true, {{}, {}}},
      {22, true, true, {{}, {}}},
      {20, true, true, {{}, {}}},
      {21, false, false, {{18, 19, 20}, {}}},
      {22, false, false, {{18, 19, 20}, {21}}},
      {20, false, false, {{18, 19}, {}}},
      {21, true, false, {{}, {}}},
  };
  for (const auto& row : rows) {
    CAPTURE(row.n);
    for (int64_t rank = 0; rank < 2; ++rank) {
      Batches expected{{0, 1, 2}, {6, 7, 8}, {12, 13, 14}};
      if (rank == 1) expected = {{3, 4, 5}, {9, 10, 11}, {15, 16, 17}};
      const auto& last = row.last_of_each_rank[static_cast<size_t>(rank)];
      if (!last.empty()) expected.push_back(last);
      CHECK(
          shard(
              order(row.n),
              {.rank = rank, .world_size = 2, .batch_size = 3, .drop_last = row.drop_last, .even_batches = row.even}) ==
          expected);
    }
  }
}

TEST_CASE("fewer samples than one round repeat, and none have no batches") {
  const auto of = [](int64_t rank, int64_t world, int64_t n, int64_t b, bool even = true) {
    return shard(order(n), {.rank = rank, .world_size = world, .batch_size = b, .even_batches = even});
  };
  CHECK(of(0, 2, 2, 3) == Batches{{0, 1, 0}});
  CHECK(of(1, 2, 2, 3) == Batches{{1, 0, 1}});
  CHECK(of(2, 3, 13, 4) == Batches{{8, 9, 10, 11}, {7, 8, 9, 10}});
  CHECK(of(1, 3, 7, 2) == Batches{{2, 3}, {1, 2}});
  CHECK(of(2, 3, 12, 6) == Batches{{0, 1, 2, 3, 4, 5}});
  CHECK(of(2, 3, 11, 12) == Batches{{2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1, 2}});
  CHECK(of(1, 3, 1, 4) == Batches{{0, 0, 0, 0}});
  CHECK(of(0, 3, 1, 4, false) == Batches{{0}});
  CHECK(of(1, 3, 1, 4, false).empty());
  CHECK(of(0, 3, 7, 2, false) == Batches{{0, 1}, {6}});
  CHECK(of(0, 3, 0, 2).empty());
}

TEST_CASE("a shard uses the given order, not the numbers 0 to N") {
  const std::vector<int64_t> shuffled{6, 3, 0, 7, 2};
  CHECK(shard(shuffled, {.rank = 1, .world_size = 2, .batch_size = 2}) == Batches{{0, 7}, {3, 0}});
}

TEST_CASE("the remainder counts valid rows of a padded last round: 0 without padding, -1 with drop_last") {
  const auto remainder = [](int64_t world, int64_t n, int64_t b, bool drop = false, bool even = true) {
    return ShardPlan(n, {.world_size = world, .batch_size = b, .drop_last = drop, .even_batches = even}).remainder();
  };
  CHECK(remainder(2, 10, 2) == 2);
  CHECK(remainder(2, 13, 4) == 5);
  CHECK(remainder(2, 12, 2) == 0);
  CHECK(remainder(3, 13, 4) == 1);
  CHECK(remainder(2, 1, 4) == 1);
  CHECK(remainder(2, 13, 2, true) == -1);
  CHECK(remainder(2, 13, 4, false, false) == 0);
}

TEST_CASE("invalid shard options are refused with the value in the message") {
  const RankContext here{.rank = 3, .world_size = 8, .host = "gpu-b"};
  CHECK_THROWS_WITH((void)shard(order(4), {.batch_size = 0}, here),
                    "[rank 3 of 8, gpu-b] shard: batch_size is 0, must be at least 1");
  CHECK_THROWS_WITH((void)shard(order(4), {.world_size = -2}), "shard: world_size is -2, must be at least 1");
  CHECK_THROWS_WITH((void)shard(order(4), {.rank = 2, .world_size = 2}),
                    "shard: rank is 2, must be 0 to 1 with world_size 2");
  CHECK_THROWS_WITH(
      (void)shard(order(4), {.world_size = 2, .batch_size = 3, .split_batches = true}, here),
      "[rank 3 of 8, gpu-b] shard: split_batches: batch_size is 3, must be a round multiple of the 2 ranks; "
      "4 would be one");
  CHECK_THROWS_WITH(ShardPlan(-1, {}), "shard: -1 samples, must be at least 0");
  CHECK_THROWS_WITH(BatchSharder<int>({.rank = -1}), "shard: rank is -1, must be 0 to 0 with world_size 1");
}

TEST_CASE("whole batches of any size are sharded as in Accelerate, from a plan and from a stream") {
  for (const auto& one : cases()["variable_batches"]) {
    CAPTURE(one.dump());
    const auto all = one["batches"].get<Batches>();
    for (int64_t rank = 0; rank < one["P"]; ++rank) {
      const BatchShardOptions options{.rank = rank, .world_size = one["P"], .even_batches = one["even_batches"]};
      const auto expected = one["shards"][static_cast<size_t>(rank)].get<Batches>();
      CHECK(batches_of(all, shard_batches(static_cast<int64_t>(all.size()), options)) == expected);
      CHECK(fed_one_by_one(all, options) == expected);
    }
  }
  CHECK(cases()["variable_batches"].size() == 12);
}

TEST_CASE("a stream is sharded like a list, for every length, rank and option") {
  for (int64_t world = 1; world <= 4; ++world)
    for (int64_t rank = 0; rank < world; ++rank)
      for (int64_t n = 0; n <= 13; ++n)
        for (const bool drop : {false, true})
          for (const bool even : {false, true}) {
            const BatchShardOptions options{.rank = rank, .world_size = world, .drop_last = drop, .even_batches = even};
            Batches all;
            for (int64_t i = 0; i < n; ++i) all.push_back({i});
            CHECK(fed_one_by_one(all, options) == batches_of(all, shard_batches(n, options)));
          }
}

TEST_CASE("drop_last holds a stream's batch back until its round is complete") {
  BatchSharder<int> dealer({.rank = 0, .world_size = 2, .drop_last = true});
  CHECK(!dealer.feed(10));
  CHECK(dealer.feed(11) == 10);
  CHECK(!dealer.feed(12));
  CHECK(!dealer.finish({}));
  CHECK(dealer.fed() == 3);
}

TEST_CASE("a total batch size above int64 is refused with both values") {
  constexpr int64_t most = std::numeric_limits<int64_t>::max();
  CHECK_THROWS_WITH(ShardPlan(10, {.world_size = 2, .batch_size = most}),
                    "shard: batch_size 9223372036854775807 times world_size 2 is more than an int64 holds, "
                    "9223372036854775807");
  CHECK(ShardPlan(10, {.world_size = 1, .batch_size = most}).size() == 1);
  CHECK(ShardPlan(10, {.world_size = 2, .batch_size = most / 2}).size() == 1);
}
