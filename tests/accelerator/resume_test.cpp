// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <list>
#include <set>

#include "accelerate/data/stream_loader.hpp"
#include "tests/accelerator/ranks.hpp"
#include "tests/checkpoint/folder.hpp"

using accelerate::Accelerator;
using Batches = std::vector<std::vector<int64_t>>;

namespace {

/// Batches of each rank in a pass over `loader_of(accelerator)`, at most `most`, and rank 0's state after it.
template <typename LoaderOf>
std::pair<std::vector<Batches>, accelerate::state::LoaderState> walk_from(int64_t ranks, const LoaderOf& loader_of,
                                                                          size_t most = 1000) {
  std::vector<Batches> seen(static_cast<size_t>(ranks));
  std::vector<accelerate::state::LoaderState> states(seen.size());
  on_ranks(ranks, [&](Accelerator& accelerator) {
    const auto rank = static_cast<size_t>(accelerator.process_index());
    auto loader = loader_of(accelerator);
    for (auto& batch : loader) {
      seen[rank].push_back(numbers(batch.data));
      if (seen[rank].size() == most) break;
    }
    if constexpr (requires { loader.state(); }) states[rank] = loader.state();
  });
  for (const auto& state : states) CHECK(state == states[0]);
  return {seen, states[0]};
}

/// A user-defined loader that reports its position but cannot skip: `samples` samples, another order in each epoch.
struct StatesItself {
  explicit StatesItself(int64_t all = 22) : samples(all) {}

  int64_t samples, each = 2;
  int64_t epoch = 0, consumed = 0;
  bool resumed = false;
  std::optional<int64_t> broken{};  // sample that cannot be read

  struct Position {
    StatesItself* of;
    accelerate::data::Batch batch{};
    accelerate::data::Batch& operator*() {
      const int64_t rows = std::min(of->each, of->samples - of->consumed);
      const auto order = torch::arange(of->samples).roll(of->epoch);
      batch.data = batch.target = order.slice(0, of->consumed, of->consumed + rows).clone();
      for (const int64_t sample : numbers(batch.data)) {
        if (sample == of->broken) throw std::runtime_error("sample is broken");
      }
      of->consumed += rows;
      return batch;
    }
    Position& operator++() {
      if (of->consumed == of->samples) ++of->epoch, of->consumed = 0;
      return *this;
    }
    bool operator==(std::default_sentinel_t) const { return of->epoch != begun; }
    int64_t begun = of->epoch;
  };
  Position begin() {
    if (!std::exchange(resumed, false)) consumed = 0;
    return {this};
  }
  [[nodiscard]] static std::default_sentinel_t end() { return {}; }
  [[nodiscard]] accelerate::state::LoaderState state() const {
    return {.epoch = epoch, .consumed = consumed, .samples = samples, .batch_size = each};
  }
  void load_state(const accelerate::state::LoaderState& from) {
    epoch = from.epoch;
    consumed = from.consumed;
    resumed = consumed > 0;
  }
};
/// The same, read by rank 0 alone.
struct StreamStatesItself : StatesItself {
  using StatesItself::StatesItself;
  static constexpr bool is_stream = true;
};

/// As above; the loaders of the other ranks have no data and cannot be positioned.
struct OnRankZero : StreamStatesItself {
  explicit OnRankZero(const Accelerator& accelerator)
      : StreamStatesItself(accelerator.is_main_process() ? 24 : 0), reads(accelerator.is_main_process()) {}
  bool reads;

  Position begin() {
    if (!reads) throw std::runtime_error("there are no data here");
    return StreamStatesItself::begin();
  }
  void load_state(const accelerate::state::LoaderState& from) {
    if (!reads) throw std::runtime_error("there are no data here");
    StreamStatesItself::load_state(from);
  }
};

/// This rank's batches of a pass, at most `most`.
template <typename Loader>
Batches walked_pass(Loader& loader, size_t most = 1000) {
  Batches seen;
  for (auto& batch : loader) {
    seen.push_back(numbers(batch.data));
    if (seen.size() == most) break;
  }
  return seen;
}

Batches batches_from(const Batches& all, size_t first) {
  return {all.begin() + static_cast<std::ptrdiff_t>(std::min(first, all.size())), all.end()};
}

/// The state after a loop that ends after `most` batches.
template <typename Loader>
accelerate::state::LoaderState left_after(Accelerator& accelerator, int64_t samples, size_t most) {
  auto loader = accelerator.prepare(Loader(samples));
  (void)walked_pass(loader, most);
  return loader.state();
}

}  // namespace

TEST_CASE("a prepared loader continues at the position of another run, on any world size") {
  const auto fresh = [](Accelerator& accelerator) {
    return accelerator.prepare(counting(20, 2, {.shuffle = true, .seed = 9}));
  };
  const auto whole = walk_from(2, fresh).first;
  const auto [first, state] = walk_from(2, fresh, 2);
  CHECK(state.consumed == 8);
  const auto resumed = [&, from = state](Accelerator& accelerator) {
    auto loader = accelerator.prepare(counting(20, 2, {.shuffle = true}));
    loader.load_state(from);
    return loader;
  };
  const auto rest = walk_from(2, resumed).first;
  CHECK(rest[0] == Batches(whole[0].begin() + 2, whole[0].end()));
  CHECK(rest[1] == Batches(whole[1].begin() + 2, whole[1].end()));

  std::multiset<int64_t> all;
  const auto elsewhere = walk_from(3, resumed).first;
  for (const auto* ranks : {&first, &elsewhere}) {
    for (const auto& batches : *ranks) {
      for (const auto& batch : batches) all.insert(batch.begin(), batch.end());
    }
  }
  CHECK(all.size() == 20);  // 8 and 12, which 3 ranks divide without padding
  CHECK(std::set<int64_t>(all.begin(), all.end()).size() == 20);
}

TEST_CASE("skip_first_batches skips this rank's first batches of any loader") {
  const auto check = [](const auto& make_loader) {
    on_ranks(2, [&](Accelerator& accelerator) {
      auto loader = accelerator.prepare(make_loader());
      auto rest = accelerator.skip_first_batches(loader, 2);
      CHECK(rest != loader);
      CHECK(rest.size() == 1);
      CHECK(loader.size() == 3);
      std::vector<int64_t> gathered;
      for (auto position = rest.begin(); position != rest.end(); ++position) {
        CHECK(position.info().index == 0);
        CHECK(position.info().last);
        gathered = numbers(accelerator.gather_for_metrics(position->data));
      }
      CHECK(gathered == std::vector<int64_t>{8, 9});
      int64_t batches = 0;
      for ([[maybe_unused]] auto& batch : loader) ++batches;
      CHECK(batches == 3);
      CHECK(accelerator.skip_first_batches(loader, 5).size() == 0);
      CHECK_THROWS_WITH_AS((void)accelerator.skip_first_batches(loader, -1),
                           doctest::Contains("skip_first_batches: -1 batches are to be skipped, must be at least 0"),
                           accelerate::Error);
    });
  };
  check([] { return counting(10, 2); });
  check([] {
    std::list<accelerate::data::Batch> batches;
    for (int64_t i = 0; i < 10; i += 2) batches.push_back({torch::arange(i, i + 2), torch::arange(i, i + 2)});
    return batches;
  });
}

TEST_CASE("a state that is saved during or after a pass of a skipping handle continues at its position") {
  const auto check = [](int64_t ranks, const auto& make_loader) {
    const testing::SharedFolder folder;
    const auto within = folder.path / "within", after = folder.path / "after", moved = folder.path / "moved";
    on_ranks(ranks, [&](Accelerator& accelerator) {
      auto loader = accelerator.prepare(make_loader());
      size_t batches = 0;
      for ([[maybe_unused]] auto& batch : accelerator.skip_first_batches(loader, 1)) {
        if (++batches == 2) accelerator.save_state(within);
      }
      accelerator.save_state(after);
      loader.set_epoch(0);
      accelerator.save_state(moved);
    });
    on_ranks(ranks, [&](Accelerator& accelerator) {
      auto undisturbed = accelerator.prepare(make_loader());
      const std::array epochs{walked_pass(undisturbed), walked_pass(undisturbed)};
      REQUIRE(epochs[0].size() > 3);
      accelerator.free_memory();
      auto loader = accelerator.prepare(make_loader());
      auto skipping = accelerator.skip_first_batches(loader, 1);
      accelerator.load_state(within);
      CHECK(walked_pass(skipping) == batches_from(epochs[0], 3));
      CHECK(walked_pass(loader) == batches_from(epochs[0], 3));
      accelerator.load_state(within);
      CHECK(walked_pass(loader) == batches_from(epochs[0], 3));
      CHECK(walked_pass(loader) == epochs[1]);
      accelerator.load_state(after);
      CHECK(walked_pass(loader) == epochs[1]);
      accelerator.load_state(moved);
      CHECK(walked_pass(loader) == epochs[0]);
    });
  };
  for (const int64_t ranks : {1, 2}) {
    CAPTURE(ranks);
    check(ranks, [] { return counting(20, 2, {.shuffle = true, .seed = 9}); });
    check(ranks, [] {
      const auto count = accelerate::data::make_stream(
          [] { return [next = int64_t{0}]() mutable { return next < 20 ? std::optional(next++) : std::nullopt; }; });
      return accelerate::data::StreamLoader(count, {.batch_size = 2}, [](const std::vector<int64_t>& samples) {
        return accelerate::data::Batch{torch::tensor(samples), torch::tensor(samples)};
      });
    });
  }
}

TEST_CASE_TEMPLATE("a foreign loader with a state continues at its position, in this epoch and the next", Loader,
                   StatesItself, StreamStatesItself) {
  for (const int64_t ranks : {1, 2, 3}) {
    on_ranks(ranks, [&](Accelerator& accelerator) {
      auto undisturbed = accelerator.prepare(Loader{});
      const std::array epochs{walked_pass(undisturbed), walked_pass(undisturbed)};
      const size_t whole = epochs[0].size() - 1;  // padded from the front, which a resumed pass lacks
      for (size_t most = 1; most < whole; ++most) {
        CAPTURE(most);
        const auto state = left_after<Loader>(accelerator, 22, most);
        CHECK(state.consumed == static_cast<int64_t>(most) * 2 * ranks);
        auto loader = accelerator.prepare(Loader{});
        loader.load_state(state);
        CHECK(loader.state() == state);
        auto rest = walked_pass(loader);
        rest.resize(whole - most);
        CHECK(rest == Batches(epochs[0].begin() + static_cast<std::ptrdiff_t>(most),
                              epochs[0].begin() + static_cast<std::ptrdiff_t>(whole)));
        CHECK(walked_pass(loader) == epochs[1]);
      }
    });
  }
}

TEST_CASE_TEMPLATE("a resumed foreign loader does not skip its consumed batches again", Loader, StatesItself,
                   StreamStatesItself) {
  for (const int64_t ranks : {1, 2}) {
    on_ranks(ranks, [&](Accelerator& accelerator) {
      const Loader fresh(24);
      auto undisturbed = accelerator.prepare(Loader(fresh));
      const std::array epochs{walked_pass(undisturbed), walked_pass(undisturbed)};
      auto loader = accelerator.prepare(Loader(fresh));
      auto skipping = accelerator.skip_first_batches(loader, 2);
      CHECK(walked_pass(skipping, 1) == Batches{epochs[0][2]});
      const auto state = loader.state();  // one loader, one place
      CHECK(skipping.state() == state);

      auto again = accelerator.prepare(Loader(fresh));
      auto again_skipping = accelerator.skip_first_batches(again, 2);
      again.load_state(state);
      CHECK(walked_pass(again_skipping) == batches_from(epochs[0], 3));
      CHECK(walked_pass(again_skipping) == batches_from(epochs[1], 2));

      auto early = accelerator.prepare(Loader(fresh));
      early.load_state(left_after<Loader>(accelerator, 24, 1));
      auto early_skipping = accelerator.skip_first_batches(early, 1);  // of the remainder
      CHECK(walked_pass(early_skipping) == batches_from(epochs[0], 2));
      CHECK(walked_pass(early_skipping) == batches_from(epochs[1], 1));

      Loader own(fresh);
      own.load_state(state);  // not through the prepared loader
      auto resumed = accelerator.prepare(own);
      CHECK(resumed.state() == state);
      CHECK(walked_pass(resumed) == batches_from(epochs[0], 3));
    });
  }
}

TEST_CASE("a dispatched foreign loader is saved and loaded, though the other ranks have no data") {
  for (const int64_t ranks : {2, 3}) {
    const testing::SharedFolder folder;
    const auto within = folder.path / "within", after = folder.path / "after";
    on_ranks(ranks, [&](Accelerator& accelerator) {
      auto loader = accelerator.prepare(OnRankZero(accelerator));
      size_t batches = 0;
      for ([[maybe_unused]] auto& batch : loader) {
        if (++batches == 2) {
          CHECK(loader.state().consumed == 4 * ranks);
          accelerator.save_state(within);
        }
      }
      CHECK(loader.state().epoch == 1);
      CHECK(loader.state().consumed == 0);
      accelerator.save_state(after);
    });
    on_ranks(ranks, [&](Accelerator& accelerator) {
      auto undisturbed = accelerator.prepare(OnRankZero(accelerator));
      const std::array epochs{walked_pass(undisturbed), walked_pass(undisturbed)};
      accelerator.free_memory();
      auto loader = accelerator.prepare(OnRankZero(accelerator));
      accelerator.load_state(within);
      CHECK(loader.state().consumed == 4 * ranks);
      CHECK(walked_pass(loader) == batches_from(epochs[0], 2));
      CHECK(walked_pass(loader) == epochs[1]);
      accelerator.load_state(after);
      CHECK(loader.state().epoch == 1);
      CHECK(walked_pass(loader) == epochs[1]);
      accelerator.load_state(within);
      auto skipping = accelerator.skip_first_batches(loader, 1);  // of the remainder
      CHECK(walked_pass(skipping) == batches_from(epochs[0], 3));
      CHECK(walked_pass(skipping) == batches_from(epochs[1], 1));
    });
  }
}

TEST_CASE("rank 0 determines the number of skipped batches if only its loader has a position") {
  on_ranks(2, [](Accelerator& accelerator) {
    OnRankZero own(accelerator);
    auto undisturbed = accelerator.prepare(own);
    const auto epoch = walked_pass(undisturbed);
    OnRankZero resumed(accelerator);
    auto loader = accelerator.prepare(resumed).skip_first_batches(3);
    if (resumed.reads) resumed.load_state({.consumed = 8, .samples = 24, .batch_size = 2});  // 2 batches of each rank
    CHECK(walked_pass(loader) == batches_from(epoch, 3));
  });
}

TEST_CASE("a state that a foreign loader loads directly is the position of its handles") {
  on_ranks(1, [](Accelerator& accelerator) {
    StatesItself own;
    auto loader = accelerator.prepare(own);
    auto second = accelerator.prepare(own);
    (void)walked_pass(loader, 3);
    CHECK(own.state().consumed == 8);  // a batch was read ahead
    CHECK(loader.state().consumed == 6);
    CHECK(second.state().consumed == 6);
    own.load_state({.epoch = 4, .consumed = 10, .samples = 22, .batch_size = 2});
    CHECK(loader.state().consumed == 10);
    CHECK(second.state().epoch == 4);
  });
}

TEST_CASE_TEMPLATE("the samples of a failed round are not consumed", Loader, StatesItself, StreamStatesItself) {
  on_ranks(2, [](Accelerator& accelerator) {
    for (const int64_t whole : {2, 1, 0}) {
      Loader torn;
      torn.broken = 4 * whole + 2;  // in the second batch of the round after these
      auto loader = accelerator.prepare(torn);
      CHECK_THROWS((void)walked_pass(loader));
      CHECK(loader.state().consumed == 4 * whole);
      CHECK(loader.state().epoch == 0);
    }
  });
}

TEST_CASE_TEMPLATE("the samples of skipped batches in a failing pass are not consumed", Loader, StatesItself,
                   StreamStatesItself) {
  on_ranks(2, [](Accelerator& accelerator) {
    Loader torn;
    torn.broken = 6;  // in the second round
    auto loader = accelerator.prepare(torn);
    auto skipping = accelerator.skip_first_batches(loader, 3);
    CHECK_THROWS((void)skipping.begin());
    CHECK(skipping.state().consumed == 0);
    CHECK(loader.state().consumed == 0);
    CHECK(loader.state().epoch == 0);
  });
}
