// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "accelerate/data/loader.hpp"
#include "tests/data/iteration.hpp"

using namespace accelerate::data;
using sources::Batches;
using sources::list;
using sources::Numbers;
using sources::pass;
using sources::Positions;

namespace {

using PositionLoader = LoaderOf<at::Tensor>;

PositionLoader positions(int64_t samples, LoaderOptions options, const DistributedOptions& distributed) {
  options.sampler = distributed_sampler(samples, distributed);
  return PositionLoader(std::make_shared<Positions>(samples), options);
}

/// Samples that all ranks read in a pass, step by step, without padding.
struct Steps {
  std::vector<Numbers> real;
  int64_t padding_rows = 0;
};

/// \param loader_of  Returns the loader of a rank.
template <typename MakeLoader>
Steps walk(int64_t ranks, const MakeLoader& loader_of) {
  Steps steps;
  std::vector<std::vector<Numbers>> rounds;
  std::vector<int64_t> remainders;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    auto loader = loader_of(rank);
    size_t step = 0;
    for (auto position = loader.begin(); position != loader.end(); ++position) {
      if (rounds.size() == step) rounds.emplace_back(), remainders.push_back(-1);
      rounds[step].push_back(list(*position));
      remainders[step] = position.info().last ? position.info().remainder : -1;
      CHECK(position.info().strided);
      ++step;
    }
  }
  for (size_t step = 0; step < rounds.size(); ++step) {
    Numbers& real = steps.real.emplace_back();
    for (size_t rank = 0; rank < rounds[step].size(); ++rank) {
      for (size_t i = 0; i < rounds[step][rank].size(); ++i) {
        const auto place = static_cast<int64_t>(i) * ranks + static_cast<int64_t>(rank);
        if (remainders[step] > 0 && place >= remainders[step]) {
          ++steps.padding_rows;
        } else {
          real.push_back(rounds[step][rank][i]);
        }
      }
    }
  }
  return steps;
}

}  // namespace

// The expected values are from recorded/record_distributed_sampler.py with PyTorch 2.11.
TEST_CASE("each rank reads the batches of PyTorch's DistributedSampler and DataLoader") {
  const auto cases =
      nlohmann::json::parse(std::ifstream(TEST_SOURCE_DIR "/tests/data/recorded/distributed_sampler.json"));
  REQUIRE(cases.size() == 96);
  for (const auto& one : cases) {
    CAPTURE(one.dump());
    const int64_t ranks = one.at("num_replicas");
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const DistributedOptions requested{
          .shuffle = one.at("shuffle"), .seed = one.at("seed").get<uint64_t>(), .drop_last = one.at("drop_last")};
      const LoaderOptions options{.batch_size = one.at("batch_size"), .drop_last = one.at("drop_short")};
      auto loader = positions(one.at("samples"), options, requested);
      loader.shard({.rank = rank, .world_size = ranks});
      loader.set_epoch(one.at("epoch"));
      const auto expected = one.at("ranks").at(static_cast<size_t>(rank)).get<Batches>();
      CHECK(loader.size() == static_cast<int64_t>(expected.size()));
      CHECK(pass(loader) == expected);

      auto own = requested;  // set only by the sampler
      own.num_replicas = ranks;
      own.rank = rank;
      auto alone = positions(one.at("samples"), options, own);
      alone.set_epoch(one.at("epoch"));
      CHECK(pass(alone) == expected);
    }
  }
}

TEST_CASE("without its own seed the sampler uses the loader's seed and epoch") {
  auto loader = positions(8, {.batch_size = 4, .seed = 42}, {});
  loader.shard({.rank = 1, .world_size = 2});
  CHECK(loader.shuffles());
  CHECK(pass(loader) == Batches{{3, 7, 1, 5}});  // randperm with seed 42: 6 3 0 7 2 1 4 5
  CHECK(pass(loader) == Batches{{5, 1, 2, 0}});  // with seed 43: 4 5 7 1 3 2 6 0
  CHECK_FALSE(positions(8, {}, {.seed = 3}).shuffles());
  CHECK_FALSE(positions(8, {}, {.shuffle = false}).shuffles());
}

TEST_CASE("an interrupted pass continues at any step with each sample once") {
  std::mt19937 random(5);
  const auto pick = [&](int64_t from, int64_t to) { return std::uniform_int_distribution<int64_t>(from, to)(random); };
  int64_t interrupted = 0;
  for (int i = 0; i < 1500; ++i) {
    const int64_t samples = pick(1, 50);
    const DistributedOptions requested{.seed = 7, .drop_last = pick(0, 3) == 0};
    const auto of = [&](int64_t batch_size, int64_t world, bool even) {
      return [=](int64_t rank) {
        auto loader = positions(samples, {.batch_size = batch_size}, requested);
        loader.shard({.rank = rank, .world_size = world, .even_batches = even});
        return loader;
      };
    };
    const int64_t world = pick(1, 4);
    const bool even = pick(0, 2) > 0;
    const auto first_loader = of(pick(1, 5), world, even);
    const auto whole = walk(world, first_loader);
    CHECK(whole.padding_rows == (even && !requested.drop_last ? (world - samples % world) % world : 0));
    if (whole.real.size() < 2) continue;
    const int64_t seen = pick(1, static_cast<int64_t>(whole.real.size()) - 1);
    auto stopped = first_loader(0);
    (void)pass(stopped, seen);

    const auto resume = [&](const auto& loader_of) {
      return [&loader_of, state = stopped.state()](int64_t rank) {
        auto loader = loader_of(rank);
        loader.load_state(state);
        return loader;
      };
    };
    const auto rest = walk(world, resume(first_loader));
    CHECK(rest.real == std::vector<Numbers>(whole.real.begin() + seen, whole.real.end()));

    const int64_t other = pick(1, 4);
    const auto elsewhere = of(pick(1, 5), other, even);
    const auto shared_anew = walk(other, resume(elsewhere));
    std::map<int64_t, int64_t> times;
    for (const auto* steps : {&whole.real, &shared_anew.real}) {
      const size_t count = steps == &whole.real ? static_cast<size_t>(seen) : steps->size();
      for (size_t step = 0; step < count; ++step) {
        for (const int64_t sample : (*steps)[step]) ++times[sample];
      }
    }
    for (const auto& [sample, count] : times) CHECK(count == 1);
    if (!requested.drop_last) CHECK(static_cast<int64_t>(times.size()) == samples);
    ++interrupted;
  }
  CHECK(interrupted > 700);
}

TEST_CASE("a sampler with another rank than its loader is refused, so samples are sharded once") {
  auto loader = positions(8, {}, {.num_replicas = 2, .rank = 1});
  loader.shard({.rank = 1, .world_size = 2});
  CHECK_THROWS_WITH_AS(loader.shard({.rank = 1, .world_size = 4}),
                       "loader: its distributed_sampler is for rank 1 of 2, the loader reads for rank 1 of 4; do not "
                       "set num_replicas and rank: the loader receives them",
                       accelerate::Error);
  CHECK(pass(loader).size() == 4);  // unchanged
  CHECK_THROWS_WITH((void)distributed_sampler(8, {.num_replicas = 2}),
                    "distributed_sampler: num_replicas and rank: only one is set; set both or neither");
  CHECK_THROWS_WITH((void)distributed_sampler(8, {.num_replicas = 2, .rank = 2}),
                    "distributed_sampler: rank is 2, must be 0 to 1 with num_replicas 2");
  CHECK_THROWS_WITH((void)distributed_sampler(-1), "distributed_sampler: samples is -1, must be at least 0");
}
