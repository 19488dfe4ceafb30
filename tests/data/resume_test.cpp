// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <atomic>
#include <map>
#include <random>

#include "accelerate/base/log.hpp"
#include "accelerate/data/loader.hpp"
#include "accelerate/data/loader_state.hpp"
#include "tests/data/iteration.hpp"

using namespace accelerate::data;
using accelerate::state::LoaderState;
using sources::Batches;
using sources::list;
using sources::Numbers;
using sources::pass;
using sources::Positions;

namespace {

using PositionLoader = LoaderOf<at::Tensor>;

PositionLoader positions_of_one_rank(int64_t samples, const LoaderOptions& options) {
  return PositionLoader(std::make_shared<Positions>(samples), options);
}

/// The state after a round trip through JSON, as a new process loads it.
LoaderState through_json(const LoaderState& state) {
  const nlohmann::json saved = state;
  return loader_state_from_json(nlohmann::json::parse(saved.dump()));
}

struct Case {
  int64_t samples, batch_size, world_size;
  bool split, even, drop, shuffle;
  int kind;  // kind of order: 0 from options, 1 a subset, 2 batches of different sizes

  [[nodiscard]] PositionLoader loader(int64_t rank) const {
    LoaderOptions options{.batch_size = batch_size, .drop_last = drop, .seed = 5};
    if (kind == 1) {
      options.sampler = subset_sampler(torch::arange(0, samples, 2), shuffle);
    } else if (kind == 2) {
      options = {.seed = 5, .batch_sampler = [n = samples](uint64_t, int64_t epoch) {
                   IndexBatches batches;
                   for (int64_t i = 0; i < n; batches.back().push_back(i++)) {
                     if (batches.empty() || (i + epoch) % 3 == 0 || (i + epoch) % 7 == 0) batches.emplace_back();
                   }
                   return batches;
                 }};
    } else {
      options.shuffle = shuffle;
    }
    auto made = positions_of_one_rank(samples, options);
    made.shard({.rank = rank, .world_size = world_size, .even_batches = even, .split_batches = split});
    return made;
  }
};

std::vector<Case> random_cases(int count, unsigned seed) {
  std::mt19937 random(seed);
  const auto pick = [&](int64_t from, int64_t to) { return std::uniform_int_distribution<int64_t>(from, to)(random); };
  std::vector<Case> cases;
  for (int i = 0; i < count; ++i) {
    Case one{.samples = pick(0, 60),
             .batch_size = pick(1, 6),
             .world_size = pick(1, 4),
             .split = pick(0, 2) == 0,
             .even = pick(0, 2) != 0,
             .drop = pick(0, 3) == 0,
             .shuffle = pick(0, 1) == 0,
             .kind = static_cast<int>(pick(0, 2))};
    if (one.split) one.batch_size *= one.world_size;
    if (one.kind == 2) one.split = one.drop = false;
    cases.push_back(one);
  }
  return cases;
}

}  // namespace

TEST_CASE("the state includes the current batch, and is the next epoch's start after the last one") {
  auto loader = positions_of_one_rank(16, {.batch_size = 4, .shuffle = true, .seed = 3});
  CHECK(loader.state() == LoaderState{.samples = 16, .order = "random", .seed = 3, .batch_size = 4});
  std::vector<int64_t> consumed;
  for ([[maybe_unused]] auto& batch : loader) {
    const auto state = loader.state();
    consumed.push_back(state.epoch * 100 + state.consumed);
  }
  CHECK(consumed == std::vector<int64_t>{4, 8, 12, 100});
  CHECK(loader.state() == LoaderState{.epoch = 1, .samples = 16, .order = "random", .seed = 3, .batch_size = 4});
  (void)pass(loader, 2);
  CHECK(loader.state().epoch == 1);  // ended early, and resumed there
  CHECK(loader.state().consumed == 8);
}

TEST_CASE("a loaded state continues with the batches that would have followed, in the next epoch too") {
  int64_t interrupted = 0;
  for (const Case& one : random_cases(1500, 1)) {
    std::vector<Batches> whole;
    std::vector<Batches> next;
    int64_t steps = 0;
    for (int64_t rank = 0; rank < one.world_size; ++rank) {
      auto loader = one.loader(rank);
      loader.set_epoch(2);
      whole.push_back(pass(loader));
      next.push_back(pass(loader));
      steps = std::max(steps, static_cast<int64_t>(whole.back().size()));
    }
    for (int64_t seen = 0; seen < steps; seen += 1 + steps / 3) {
      auto first = one.loader(0);
      first.set_epoch(2);
      (void)pass(first, seen);
      const auto state = through_json(first.state());
      for (int64_t rank = 0; rank < one.world_size; ++rank) {
        const auto& all = whole[static_cast<size_t>(rank)];
        auto loader = one.loader(rank);
        loader.load_state(state);
        const auto rest = pass(loader);
        CHECK(rest == Batches(all.begin() + std::min(seen, static_cast<int64_t>(all.size())), all.end()));
        CHECK(pass(loader) == next[static_cast<size_t>(rank)]);
        ++interrupted;
      }
    }
  }
  CHECK(interrupted > 5000);
}

TEST_CASE("another world size or batch size visits the remaining samples exactly once") {
  std::mt19937 random(7);
  int64_t interrupted = 0;
  for (const Case& one : random_cases(3000, 2)) {
    if (one.drop) continue;
    auto first = one.loader(0);
    const int64_t steps = static_cast<int64_t>(pass(first).size());
    if (steps < 2) continue;
    const int64_t seen = 1 + static_cast<int64_t>(random() % static_cast<unsigned>(steps - 1));
    std::multiset<int64_t> before;
    for (int64_t rank = 0; rank < one.world_size; ++rank) {
      auto loader = one.loader(rank);
      for (const auto& batch : pass(loader, seen)) before.insert(batch.begin(), batch.end());
    }
    first.set_epoch(0);
    (void)pass(first, seen);
    Case other = one;
    other.world_size = 1 + (one.world_size + static_cast<int64_t>(random() % 3)) % 4;
    other.batch_size = (1 + static_cast<int64_t>(random() % 5)) * (one.split ? other.world_size : 1);
    if (one.kind == 2) other.batch_size = 1;

    std::map<int64_t, int64_t> times;  // how often each sample is seen, without padding
    for (const int64_t sample : before) ++times[sample];
    std::vector<Batches> rest;
    std::vector<int64_t> remainders;
    for (int64_t rank = 0; rank < other.world_size; ++rank) {
      auto loader = other.loader(rank);
      loader.load_state(through_json(first.state()));
      Batches batches;
      for (auto it = loader.begin(); it != loader.end(); ++it) {
        batches.push_back(list(*it));
        if (rank == 0) remainders.push_back(it.info().last ? it.info().remainder : 0);
      }
      rest.push_back(std::move(batches));
    }
    for (size_t step = 0; step < rest[0].size(); ++step) {
      Numbers round;
      for (const auto& batches : rest) {
        if (step < batches.size()) round.insert(round.end(), batches[step].begin(), batches[step].end());
      }
      if (other.even && other.world_size > 1 && remainders[step] > 0)
        round.resize(static_cast<size_t>(remainders[step]));
      for (const int64_t sample : round) ++times[sample];
    }
    Numbers once;
    for (const auto& [sample, count] : times) {
      CHECK(count == 1);
      once.push_back(sample);
    }
    Numbers all;
    for (int64_t i = 0; i < one.samples; i += one.kind == 1 ? 2 : 1) all.push_back(i);
    CHECK(once == all);
    ++interrupted;
  }
  CHECK(interrupted > 1500);
}

TEST_CASE("a resumed and re-sharded epoch can be interrupted again") {
  const auto loader_of = [](int64_t rank, int64_t world) {
    auto loader = positions_of_one_rank(30, {.batch_size = 2});
    loader.shard({.rank = rank, .world_size = world});
    return loader;
  };
  auto two = loader_of(0, 2);
  (void)pass(two, 3);  // 12 samples consumed
  auto three = loader_of(1, 3);
  three.load_state(two.state());
  CHECK(pass(three, 1) == Batches{{14, 15}});
  CHECK(three.state().consumed == 18);
  CHECK(three.state().origin == 12);
  auto again = loader_of(1, 3);
  again.load_state(through_json(three.state()));
  CHECK(again.state() == three.state());
  CHECK(pass(again) == Batches{{20, 21}, {26, 27}});
  CHECK(pass(again).size() == 5);  // the next epoch is whole
}

TEST_CASE("a log line reports that an epoch was re-sharded") {
  std::vector<std::string> lines;
  const auto level = accelerate::base::log_level();
  accelerate::base::set_log_level(accelerate::base::LogLevel::info);
  const auto before = accelerate::base::set_log_handler([&](auto, std::string_view line) { lines.emplace_back(line); });
  auto one = positions_of_one_rank(10, {.batch_size = 2});
  (void)pass(one, 2);
  auto two = positions_of_one_rank(10, {.batch_size = 1});
  two.shard({.rank = 0, .world_size = 2});
  two.load_state(one.state());
  (void)pass(two);
  auto filled = positions_of_one_rank(10, {.batch_size = 4});
  filled.shard({.rank = 1, .world_size = 2});
  filled.load_state(one.state());
  (void)pass(filled);
  auto same = positions_of_one_rank(10, {.batch_size = 2});
  same.load_state(one.state());
  (void)pass(same);
  accelerate::base::set_log_handler(before);
  accelerate::base::set_log_level(level);
  CHECK(lines == std::vector<std::string>{
                     "loader: epoch 0 continues after 4 of 10 samples, seen in batches of 2 on 1 ranks; the other 6 "
                     "are sharded again, in batches of 1 to 2 ranks",
                     "loader: epoch 0 continues after 4 of 10 samples, seen in batches of 2 on 1 ranks; the other 6 "
                     "are sharded again, in batches of 4 to 2 ranks; 2 of them are repeated to pad the last batches"});
}

TEST_CASE("a loader continues from a position within a step") {
  auto loader = positions_of_one_rank(10, {.batch_size = 2});
  loader.shard({.rank = 1, .world_size = 2});
  loader.load_state({.consumed = 3, .samples = 10, .world_size = 2, .batch_size = 2});
  CHECK(pass(loader) == Batches{{5, 6}, {9, 3}});
}

TEST_CASE("set_epoch drops the resume point") {
  auto loader = positions_of_one_rank(8, {.batch_size = 4});
  (void)pass(loader, 1);
  loader.load_state(loader.state());
  loader.set_epoch(5);
  CHECK(pass(loader).size() == 2);
  CHECK(loader.epoch() == 6);
}

TEST_CASE("skip_first_batches returns another loader, reads no skipped batch, and keeps the first loader") {
  auto loader = positions_of_one_rank(16, {.batch_size = 4, .shuffle = true, .seed = 42});
  loader.set_epoch(1);
  auto rest = loader.skip_first_batches(2);
  auto all = pass(loader);
  CHECK(rest.size() == 2);
  CHECK(loader.size() == 4);
  CHECK(rest.epoch() == 1);
  Numbers indices;
  Batches seen;
  for (auto it = rest.begin(); it != rest.end(); ++it) {
    indices.push_back(it.info().index);
    seen.push_back(list(*it));
    CHECK(it.info().last == (seen.size() == 2));
  }
  CHECK(seen == Batches{all[2], all[3]});
  CHECK(indices == Numbers{0, 1});
  CHECK(rest != loader);
  CHECK(pass(loader).size() == 4);
  auto plain = positions_of_one_rank(16, {.batch_size = 4}).skip_first_batches(1).skip_first_batches(1);
  CHECK(pass(plain) == Batches{{8, 9, 10, 11}, {12, 13, 14, 15}});
  auto none = positions_of_one_rank(16, {.batch_size = 4}).skip_first_batches(7);
  CHECK(none.size() == 0);
  CHECK(pass(none).empty());
  CHECK_THROWS_WITH((void)loader.skip_first_batches(-1),
                    "skip_first_batches: -1 batches are to be skipped, must be at least 0");
  CHECK_THROWS_WITH((void)loader.skip_first_batches(std::numeric_limits<int64_t>::max() / 2),
                    "skip_first_batches: 4611686018427387903 batches are to be skipped, must be at most 1099511627776");
}

TEST_CASE("a loader that skips batches continues at its state, and a resumed one skips the remaining batches") {
  for (const int64_t world : {1, 2, 3}) {
    const auto loader_of = [&](int64_t ranks) {
      auto loader = positions_of_one_rank(24, {.batch_size = 2, .shuffle = true, .seed = 4});
      loader.shard({.rank = 0, .world_size = ranks});
      return loader;
    };
    auto plain = loader_of(world);
    const auto all = pass(plain);
    const auto after = [&](int64_t batches) { return Batches(all.begin() + batches, all.end()); };
    auto skipping = loader_of(world).skip_first_batches(2);
    CHECK(pass(skipping, 1) == Batches{all[2]});
    const auto state = skipping.state();
    CHECK(state.consumed == 3 * 2 * world);

    auto again = loader_of(world).skip_first_batches(2);
    again.load_state(state);
    CHECK(pass(again) == after(3));
    CHECK(pass(again).size() == all.size() - 2);  // the next epoch skips batches, too
    auto early = loader_of(world).skip_first_batches(2);
    plain.set_epoch(0);
    (void)pass(plain, 1);
    early.load_state(plain.state());
    CHECK(pass(early) == after(2));
    auto resumed = loader_of(world);
    resumed.load_state(state);
    auto later = resumed.skip_first_batches(1);
    CHECK(pass(later) == after(4));
    CHECK(pass(resumed) == after(3));
    auto beyond = loader_of(world).skip_first_batches(50);
    beyond.load_state(state);
    CHECK(pass(beyond).empty());
  }
  // Two batches on four ranks are 16 samples, of which 6 were consumed: the remainder is re-sharded in steps of 8.
  auto one = positions_of_one_rank(24, {.batch_size = 2}).skip_first_batches(2);
  (void)pass(one, 1);
  auto four = positions_of_one_rank(24, {.batch_size = 2}).skip_first_batches(2);
  four.shard({.rank = 0, .world_size = 4});
  four.load_state(one.state());
  CHECK(pass(four) == Batches{{14, 15}, {22, 23}});
}

TEST_CASE("with several open passes the last one that returned a batch determines the loader's position") {
  auto loader = positions_of_one_rank(12, {.batch_size = 2});
  auto other = positions_of_one_rank(12, {.batch_size = 2});
  int64_t steps = 0;
  for ([[maybe_unused]] auto& batch : loader) {
    const int64_t epoch = loader.epoch();
    const auto before = loader.state();
    CHECK((before.epoch == 0 || ++steps == 6));
    if (before.consumed == 4) {
      CHECK(list(*loader.begin()) == Numbers{0, 1});
      CHECK(loader.state() == before);
    } else if (before.consumed == 6) {
      (void)pass(loader);  // the next epoch, to its end
      CHECK(loader.state().epoch == epoch + 2);
      CHECK(loader.state().consumed == 0);
    } else if (before.consumed == 8) {
      other.load_state(before);
      CHECK(pass(other) == Batches{{8, 9}, {10, 11}});
    } else if (before.consumed == 10) {
      (void)pass(loader, 2);
      CHECK(loader.state().consumed == 4);  // the pass ended early there
    }
    if (before.consumed < 12 && before.epoch == 0) ++steps;
  }
  CHECK(loader.state().consumed == 0);
  CHECK(loader.state().epoch == loader.epoch() + 1);  // the pass that ended early counts
}

TEST_CASE("set_epoch keeps a loaded position in its epoch, and logs that it drops one of another epoch") {
  auto one = positions_of_one_rank(12, {.batch_size = 2, .shuffle = true, .seed = 4});
  one.set_epoch(1);
  const auto all = pass(one);
  one.set_epoch(1);
  (void)pass(one, 4);
  for (const int64_t epoch : {1, 2}) {
    std::string lines;
    const auto level = accelerate::base::log_level();
    accelerate::base::set_log_level(accelerate::base::LogLevel::info);
    const auto handler = accelerate::base::set_log_handler([&](auto, std::string_view line) { lines += line; });
    auto resumed = positions_of_one_rank(12, {.batch_size = 2, .shuffle = true});
    resumed.load_state(through_json(one.state()));
    resumed.set_epoch(epoch);
    CHECK(resumed.state().consumed == (epoch == 1 ? 8 : 0));
    const auto rest = pass(resumed);
    CHECK(rest.size() == (epoch == 1 ? 2 : 6));
    if (epoch == 1) CHECK(rest == Batches(all.begin() + 4, all.end()));
    accelerate::base::set_log_handler(handler);
    accelerate::base::set_log_level(level);
    const bool was_logged =
        lines.find("loader: set_epoch(2) drops the place that was loaded, after 8 samples of epoch 1") !=
        std::string::npos;
    CHECK(was_logged == (epoch == 2));
  }
}

TEST_CASE("a position within a batch of the batch sampler is resumed, and only a short batch is split") {
  const auto cut = [](int64_t samples, const Numbers& sizes) {
    return LoaderOptions{.batch_sampler = [=](uint64_t, int64_t) {
      IndexBatches batches;
      for (int64_t i = 0; i < samples;) {
        auto& batch = batches.emplace_back();
        const auto size = sizes[(batches.size() - 1) % sizes.size()];
        for (; i < samples && static_cast<int64_t>(batch.size()) < size; ++i) batch.push_back(i);
      }
      return batches;
    }};
  };
  auto two = positions_of_one_rank(11, cut(11, {2}));
  (void)pass(two, 3);
  const auto resumed = [&](const Numbers& sizes, const ShardSpec& shard_spec) {
    auto loader = positions_of_one_rank(11, cut(11, sizes));
    loader.shard(shard_spec);
    loader.load_state(two.state());
    return pass(loader);
  };
  CHECK(resumed({4}, {.rank = 0, .world_size = 2}) == Batches{{6, 7, 8, 9}});
  CHECK(resumed({4}, {.rank = 1, .world_size = 2}) == Batches{{10, 6, 7, 8}});
  CHECK(resumed({4}, {.rank = 1, .world_size = 2, .split_batches = true}) == Batches{{8, 9}, {7, 8}});
  CHECK(resumed({3, 5, 2, 1}, {}) == Batches{{6, 7}, {8, 9}, {10}});
  CHECK(resumed({8}, {.rank = 1, .world_size = 2, .split_batches = true}) == Batches{{9, 10, 6}});
  auto tiny = positions_of_one_rank(3, cut(3, {8}));
  tiny.shard({.rank = 1, .world_size = 2, .split_batches = true});
  CHECK(pass(tiny) == Batches{{2, 0}});
}

TEST_CASE("a batch that cannot be read is not consumed, so a saved state still contains its samples") {
  struct Flaky final : SourceOf<at::Tensor> {
    [[nodiscard]] int64_t size() const override { return 8; }
    [[nodiscard]] at::Tensor read(const at::Tensor& indices) const override {
      if (indices[0].item<int64_t>() == 4 && !failed.exchange(true)) throw std::runtime_error("disk");
      return indices.clone();
    }
    mutable std::atomic<bool> failed = false;
  };
  for (const int64_t workers : {0, 2}) {
    PositionLoader loader(std::make_shared<Flaky>(), {.batch_size = 2, .num_workers = workers});
    CHECK_THROWS_WITH((void)pass(loader), "disk");
    CHECK(loader.state().consumed == 4);
    loader.load_state(through_json(loader.state()));
    CHECK(pass(loader) == Batches{{4, 5}, {6, 7}});
  }
}

TEST_CASE("an invalid state is refused with the numbers") {
  auto loader = positions_of_one_rank(16, {.batch_size = 4});
  const auto refused = [&](const LoaderState& state) {
    try {
      loader.load_state(state);
    } catch (const accelerate::Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(refused({.epoch = -1}) == "load_state: epoch is -1, must be at least 0");
  CHECK(refused({.samples = -4}) == "load_state: samples is -4, must be at least 0");
  CHECK(refused({.consumed = -2, .samples = 16}) == "load_state: consumed is -2, must be at least 0");
  CHECK(refused({.consumed = 17, .samples = 16}) == "load_state: consumed is 17, must be at most the samples, 16");
  CHECK(refused({.consumed = 4, .origin = -1, .samples = 16}) == "load_state: origin is -1, must be at least 0");
  CHECK(refused({.consumed = 4, .origin = 5, .samples = 16}) == "load_state: origin is 5, must be at most consumed, 4");
  CHECK(
      refused({.epoch = 3, .consumed = 4, .samples = 20}) ==
      "load_state: the state is of an epoch of 20 samples, of which 4 were seen; this loader's has 16. Resume with the "
      "data and sampler that it was saved with, or begin a new epoch with set_epoch(4)");
  CHECK(refused({.epoch = int64_t{1} << 32}) == "load_state: epoch is 4294967296, must be at most 4294967295");
  CHECK(refused({.world_size = 0}) == "load_state: world_size is 0, must be at least 1");
  CHECK(refused({.batch_size = -3}) == "load_state: batch_size is -3, must be at least 1");
  CHECK_THROWS_WITH(loader.set_epoch(int64_t{1} << 32), "set_epoch: epoch is 4294967296, must be at most 4294967295");
  CHECK(pass(loader).size() == 4);  // unchanged
  auto batches = positions_of_one_rank(4, {.batch_sampler = [](uint64_t, int64_t) {
                                         return IndexBatches{{0, 1}, {2}};
                                       }});
  batches.load_state({.consumed = 2, .samples = 5});
  CHECK_THROWS_WITH((void)batches.begin(),
                    "load_state: the state is of an epoch of 5 samples, of which 2 were seen; this loader's has 3. "
                    "Resume with the data and sampler that it was saved with, or begin a new epoch with set_epoch(1)");
}

TEST_CASE("a position in an order of another kind is refused, because samples would repeat or be lost") {
  const auto ten = torch::arange(10);
  const auto own = make_sampler(10, [=](uint64_t, int64_t) { return ten; });
  const std::map<std::string, LoaderOptions> kinds{
      {"sequential", {}},
      {"random", {.shuffle = true}},
      {"random with replacement", {.sampler = random_sampler_with_replacement(10, 10)}},
      {"weighted", {.sampler = weighted_sampler(torch::ones(10), 10)}},
      {"a subset", {.sampler = subset_sampler(ten, false)}},
      {"a random subset", {.sampler = subset_sampler(ten)}},
      {"length-grouped", {.sampler = length_grouped_sampler(ten, 2)}},
      {"distributed", {.sampler = distributed_sampler(10)}},
      {"distributed, sequential", {.sampler = distributed_sampler(10, {.shuffle = false})}},
      {"a user's own", {.sampler = own}},
      {"a batch sampler's", {.batch_sampler = [](uint64_t, int64_t) {
         return IndexBatches{{0, 1, 2, 3, 4}, {5, 6, 7, 8, 9}};
       }}}};
  for (const auto& [kind, options] : kinds) {
    auto saved = positions_of_one_rank(10, options);
    (void)pass(saved, 1);
    const auto state = through_json(saved.state());
    CHECK(state.order == kind);
    for (const auto& [other, others] : kinds) {
      auto loader = positions_of_one_rank(10, others);
      if (other == kind) {
        loader.load_state(state);
        continue;
      }
      CHECK_THROWS_WITH(
          loader.load_state(state),
          fmt::format("load_state: the state is of an epoch with the order {}, of which {} of 10 samples "
                      "were seen; this loader has the order {}, in which other samples come first. Resume with the "
                      "sampler that it was saved with, or begin a new epoch with set_epoch(1)",
                      kind, state.consumed, other)
              .c_str());
      CHECK(loader.state().consumed == 0);
      auto unknown = state;  // from the first version, or from a folder of another library
      unknown.order.clear();
      loader.load_state(unknown);
      auto between = state;
      between.consumed = 0;
      loader.load_state(between);
    }
  }
}

TEST_CASE("a state of format version 1, which has no kind of order, is read") {
  const auto first = nlohmann::json::parse(
      R"({"version": 1, "epoch": 2, "consumed": 4, "origin": 0, "samples": 16, "seed": 7, "world_size": 2,
          "batch_size": 2, "split_batches": false, "even_batches": true, "drop_last": false})");
  CHECK(loader_state_from_json(first) ==
        LoaderState{.epoch = 2, .consumed = 4, .samples = 16, .seed = 7, .world_size = 2, .batch_size = 2});
}

TEST_CASE("JSON that is not a saved state is refused") {
  const nlohmann::json good = LoaderState{.seed = 7};
  const auto refused = [&](const auto& change) {
    auto json = good;
    change(json);
    try {
      (void)loader_state_from_json(json);
    } catch (const accelerate::Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(loader_state_from_json(good) == LoaderState{.seed = 7});
  CHECK(refused([](auto& json) { json = 3; }) == "load_state: the saved state is number, must be a JSON object");
  CHECK(refused([](auto& json) { json["version"] = 3; }) ==
        "load_state: the saved state has version 3, this library reads 2");
  CHECK(refused([](auto& json) { json["order"] = 3; }) ==
        "load_state: \"order\" of the saved state is 3, must be a string");
  CHECK(refused([](auto& json) { json.erase("order"); }) ==
        "load_state: the saved state has no \"order\"; it was not written by this library");
  CHECK(refused([](auto& json) { json.erase("epoch"); }) ==
        "load_state: the saved state has no \"epoch\"; it was not written by this library");
  CHECK(refused([](auto& json) { json["epoch"] = "one"; }) ==
        "load_state: \"epoch\" of the saved state is \"one\", must be an integer of 64 bits");
  CHECK(refused([](auto& json) { json["consumed"] = UINT64_MAX; }) ==
        "load_state: \"consumed\" of the saved state is 18446744073709551615, must be an integer of 64 bits");
  CHECK(refused([](auto& json) { json["drop_last"] = 1; }) ==
        "load_state: \"drop_last\" of the saved state is 1, must be true or false");
  CHECK(refused([](auto& json) { json["seed"] = -1; }) ==
        "load_state: \"seed\" of the saved state is -1, must be an unsigned integer");
}
