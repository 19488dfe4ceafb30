// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <list>
#include <set>

#include "tests/accelerator/ranks.hpp"

using accelerate::Accelerator;
using Batches = std::vector<std::vector<int64_t>>;

namespace {

/// What each rank sees of a pass over `loader_of(accelerator)`, at most so many batches, and rank 0's state after it.
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

}  // namespace

TEST_CASE("a prepared loader goes on where another run's stood, on as many ranks or on others") {
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
  CHECK(all.size() == 20);  // 8 and 12, which 3 ranks take without filling
  CHECK(std::set<int64_t>(all.begin(), all.end()).size() == 20);
}

TEST_CASE("skip_first_batches leaves out this rank's first batches, of our loaders and of any other") {
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
