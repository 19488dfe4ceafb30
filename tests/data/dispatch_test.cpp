// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include "accelerate/data/dispatch.hpp"

using namespace accelerate::data;
using Numbers = std::vector<int64_t>;
using Batches = std::vector<Numbers>;

namespace {

Numbers list_of(const at::Tensor& tensor) {
  const auto flat = tensor.contiguous();
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

struct Rounds {
  std::vector<Batches> ranks;
  Numbers samples;
};

Rounds rounds_of_batches(const std::vector<at::Tensor>& batches, const DispatchOptions& options) {
  Rounds all{std::vector<Batches>(static_cast<size_t>(options.world_size)), {}};
  BatchDispatcher<at::Tensor> dispatcher(options);
  int64_t read = 0;
  const auto take = [&](const std::optional<Round<at::Tensor>>& round) {
    if (!round) return;
    REQUIRE(round->batches.size() == all.ranks.size());
    for (size_t rank = 0; rank < all.ranks.size(); ++rank) all.ranks[rank].push_back(list_of(round->batches[rank]));
    all.samples.push_back(round->samples);
    CHECK(round->read > read);
    read = round->read;
  };
  for (const auto& batch : batches) take(dispatcher.feed(batch));
  take(dispatcher.finish());
  CHECK(rounds_of(static_cast<int64_t>(batches.size()), options) == static_cast<int64_t>(all.samples.size()));
  return all;
}

std::vector<at::Tensor> batches_of(int64_t samples, int64_t size) {
  std::vector<at::Tensor> batches;
  for (int64_t i = 0; i < samples; i += size) batches.push_back(torch::arange(i, std::min(i + size, samples)));
  return batches;
}

}  // namespace

// Accelerate 1.15's dispatcher, except that tiny data sets reach every rank.
TEST_CASE("rounds are split as in Accelerate's dispatcher") {
  auto got = rounds_of_batches(batches_of(10, 2), {.world_size = 2});
  CHECK(got.ranks[0] == Batches{{0, 1}, {4, 5}, {8}});
  CHECK(got.ranks[1] == Batches{{2, 3}, {6, 7}, {9}});
  CHECK(got.samples == Numbers{4, 4, 2});
  got = rounds_of_batches(batches_of(13, 4), {.world_size = 2});
  CHECK(got.ranks[0] == Batches{{0, 1, 2, 3}, {8, 9, 10}});
  CHECK(got.ranks[1] == Batches{{4, 5, 6, 7}, {11, 12, 0}});
  CHECK(got.samples == Numbers{8, 5});
  got = rounds_of_batches(batches_of(13, 4), {.world_size = 3});
  CHECK(got.ranks[0] == Batches{{0, 1, 2, 3}, {12}});
  CHECK(got.ranks[1] == Batches{{4, 5, 6, 7}, {0}});
  CHECK(got.ranks[2] == Batches{{8, 9, 10, 11}, {1}});
  got = rounds_of_batches(batches_of(12, 2), {.world_size = 2});
  CHECK(got.ranks[1] == Batches{{2, 3}, {6, 7}, {10, 11}});
  CHECK(got.samples == Numbers{4, 4, 4});
  got = rounds_of_batches(batches_of(12, 2), {.world_size = 2, .drop_last = true});
  CHECK(got.ranks[0] == Batches{{0, 1}, {4, 5}, {8, 9}});
  got = rounds_of_batches(batches_of(14, 2), {.world_size = 2, .drop_last = true});
  CHECK(got.ranks[1] == Batches{{2, 3}, {6, 7}, {10, 11}});
  got = rounds_of_batches(batches_of(13, 4), {.world_size = 2, .split_batches = true});
  CHECK(got.ranks[0] == Batches{{0, 1}, {4, 5}, {8, 9}, {12}});
  CHECK(got.ranks[1] == Batches{{2, 3}, {6, 7}, {10, 11}, {0}});
  CHECK(got.samples == Numbers{4, 4, 4, 1});
  got = rounds_of_batches(batches_of(10, 2), {.world_size = 3});
  CHECK(got.ranks[2] == Batches{{4, 5}, {0, 1}});
  CHECK(got.samples == Numbers{6, 4});
}

TEST_CASE("every rank gets a sample, however few there are") {
  auto got = rounds_of_batches(batches_of(1, 4), {.world_size = 3});
  CHECK(got.ranks == std::vector<Batches>{{{0}}, {{0}}, {{0}}});
  CHECK(got.samples == Numbers{1});
  got = rounds_of_batches(batches_of(2, 8), {.world_size = 4, .split_batches = true});
  CHECK(got.ranks == std::vector<Batches>{{{0}}, {{1}}, {{0}}, {{1}}});
  CHECK(rounds_of_batches({}, {.world_size = 2}).samples.empty());
}

TEST_CASE("batches of different sizes are sent whole, and the first round's pad the last") {
  std::vector<at::Tensor> batches;
  for (const int64_t size : {3, 2, 4, 3, 2}) batches.push_back(torch::full({size}, size));
  auto got = rounds_of_batches(batches, {.world_size = 2});
  CHECK(got.ranks[0] == Batches{{3, 3, 3}, {4, 4, 4, 4}, {2}});
  CHECK(got.ranks[1] == Batches{{2, 2}, {3, 3, 3}, {2}});
  CHECK(got.samples == Numbers{5, 7, 2});
  batches = {torch::ones({2, 1}, torch::kLong), torch::full({2, 2}, 2), torch::full({2, 3}, 3)};
  got = rounds_of_batches(batches, {.world_size = 2});
  CHECK(got.ranks[0] == Batches{{1, 1}, {3, 3, 3}});
  CHECK(got.ranks[1] == Batches{{2, 2, 2, 2}, {3, 3, 3}});
  const std::vector<at::Tensor> scalars{torch::tensor(0), torch::tensor(1), torch::tensor(2)};
  got = rounds_of_batches(scalars, {.world_size = 2});
  CHECK(got.ranks[0] == Batches{{0}, {2}});
  CHECK(got.ranks[1] == Batches{{1}, {0}});
  CHECK(got.samples == Numbers{-1, -1});
}

TEST_CASE("padding is not taken from the reading rank's modified first batch") {
  BatchDispatcher<at::Tensor> dispatcher({.world_size = 2});
  const auto batches = batches_of(9, 4);
  CHECK_FALSE(dispatcher.feed(batches[0]));
  CHECK_FALSE(dispatcher.feed(batches[1]));
  auto first = dispatcher.feed(batches[2]);
  REQUIRE(first);
  first->batches[0].add_(100);
  const auto last = dispatcher.finish();
  REQUIRE(last);
  CHECK(list_of(last->batches[0]) == Numbers{8});
  CHECK(list_of(last->batches[1]) == Numbers{0});
}

TEST_CASE("the last round is padded from first batches of any size, empty ones too") {
  std::vector<at::Tensor> batches{torch::empty({0}, torch::kLong), torch::arange(0, 1), torch::arange(1, 3),
                                  torch::arange(3, 8), torch::arange(8, 9)};
  const auto got = rounds_of_batches(batches, {.world_size = 4});
  CHECK(got.ranks == std::vector<Batches>{{{}, {8}}, {{0}, {0}}, {{1, 2}, {1}}, {{3, 4, 5, 6, 7}, {2}}});
  CHECK(got.samples == Numbers{8, 1});
}

TEST_CASE("a batch that cannot be split is refused with its number and rows") {
  CHECK_THROWS_WITH((void)rounds_of_batches(batches_of(9, 3), {.world_size = 2, .split_batches = true}),
                    "loader: split_batches: batch 0 has 3 rows, must be a round multiple of the 2 ranks, all of them "
                    "tensors' first dimension");
  CHECK_THROWS_WITH((void)rounds_of_batches({torch::tensor(1)}, {.world_size = 2, .split_batches = true}),
                    "loader: split_batches: batch 0 has 0 rows, must be a round multiple of the 2 ranks, all of them "
                    "tensors' first dimension");
  CHECK_THROWS_WITH(BatchDispatcher<at::Tensor>({.world_size = 0}), doctest::Contains("world_size is 0"));
}

TEST_CASE("members without rows stay with their batch in every complete round, also in the last one") {
  using Counted = std::pair<at::Tensor, at::Tensor>;  // rows and their sum
  for (const bool drop_last : {false, true}) {
    BatchDispatcher<Counted> dispatcher({.world_size = 2, .drop_last = drop_last});
    const auto check = [](const std::optional<Round<Counted>>& round) {
      if (!round) return 0;
      for (const auto& [rows, sum] : round->batches) CHECK(rows.sum().equal(sum));
      return 1;
    };
    int rounds = 0;
    for (const at::Tensor& rows : batches_of(8, 2)) rounds += check(dispatcher.feed({rows, rows.sum()}));
    rounds += check(dispatcher.finish());
    CHECK(rounds == 2);
  }
}
