// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <random>

#include "accelerate/sharding/shard_plan.hpp"
#include "accelerate/sharding/strategy.hpp"

using namespace accelerate::sharding;

namespace {

std::vector<ShardItem> doubles(const std::vector<int64_t>& sizes) {
  std::vector<ShardItem> items;
  for (const int64_t size : sizes) items.push_back({size, 8, "Double cpu"});
  return items;
}

}  // namespace

TEST_CASE("parameters are aligned to 64 bytes, and a part may begin and end within a parameter") {
  const auto items = doubles({5, 3, 0, 1});
  const ShardPlan plan = plan_shards(items, 4, 1 << 20);
  REQUIRE(plan.units.size() == 1);
  const ShardUnit& unit = plan.units[0];
  CHECK((unit == ShardUnit{"Double cpu", {0, 1, 2, 3}, {0, 8, 16, 16}, 32}));
  CHECK((ranges_of(unit, items, 4, 0) == std::vector<ShardRange>{{0, 0, 5, 0}}));
  CHECK((ranges_of(unit, items, 4, 1) == std::vector<ShardRange>{{1, 0, 3, 0}}));
  CHECK((ranges_of(unit, items, 4, 2) == std::vector<ShardRange>{{3, 0, 1, 0}}));
  CHECK(ranges_of(unit, items, 4, 3).empty());
  const auto one = doubles({20});
  const ShardUnit cut = plan_shards(one, 2, 1 << 20).units[0];
  CHECK(cut.numel == 32);
  CHECK((ranges_of(cut, one, 2, 0) == std::vector<ShardRange>{{0, 0, 16, 0}}));
  CHECK((ranges_of(cut, one, 2, 1) == std::vector<ShardRange>{{0, 16, 20, 0}}));
}

TEST_CASE("a unit has one dtype and at most the given bytes, a larger parameter is alone") {
  const std::vector<ShardItem> items{{10, 8, "Double cpu"},  {10, 4, "Float cpu"}, {4, 8, "Double cpu"},
                                     {100, 8, "Double cpu"}, {3, 4, "Float cpu"},  {1, 8, "Double cpu"}};
  const ShardPlan plan = plan_shards(items, 1, 200);
  std::vector<std::vector<int64_t>> units;
  for (const ShardUnit& unit : plan.units) units.push_back(unit.items);
  CHECK((units == std::vector<std::vector<int64_t>>{{0, 2}, {1, 4}, {3}, {5}}));
}

TEST_CASE("without parameters there are no units") { CHECK(plan_shards({}, 3, 100).units.empty()); }

TEST_CASE("the ranks' ranges cover every element once, for any sizes and number of ranks") {
  std::mt19937 random(5);
  for (int64_t round = 0; round < 200; ++round) {
    std::vector<ShardItem> items;
    const auto count = static_cast<int64_t>(random() % 9);
    for (int64_t i = 0; i < count; ++i) {
      const bool is_double = random() % 3 == 0;
      items.push_back({static_cast<int64_t>(random() % 200), is_double ? 8 : 4, is_double ? "Double" : "Float"});
    }
    const int64_t ranks = 1 + static_cast<int64_t>(random() % 7);
    const ShardPlan plan = plan_shards(items, ranks, 1 + static_cast<int64_t>(random() % 1000));
    std::vector<int64_t> covered(items.size());
    for (const ShardUnit& unit : plan.units) {
      const int64_t aligned = 64 / items[static_cast<size_t>(unit.items[0])].element_bytes;
      CHECK(unit.numel % (ranks * aligned) == 0);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        for (const ShardRange& range : ranges_of(unit, items, ranks, rank)) {
          auto& next = covered[static_cast<size_t>(range.item)];
          CHECK(range.begin == next);  // ranges of a parameter ascend with the rank
          next = range.end;
          CHECK(range.offset + range.end - range.begin <= unit.numel / ranks);
        }
      }
    }
    for (size_t i = 0; i < items.size(); ++i) CHECK(covered[i] == items[i].numel);
  }
}

TEST_CASE("strategies have the names of PyTorch's FSDP") {
  CHECK(strategy_name(ShardingStrategy::no_shard) == "no_shard");
  CHECK(strategy_name(ShardingStrategy::shard_optim_op) == "shard_optim_op");
  CHECK(strategy_name(ShardingStrategy::shard_grad_op) == "shard_grad_op");
  CHECK(strategy_name(ShardingStrategy::full_shard) == "full_shard");
}
