// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <algorithm>
#include <functional>
#include <iterator>
#include <set>

#include "accelerate/base/log.hpp"
#include "tests/accelerator/ranks.hpp"
#include "tests/checkpoint/folder.hpp"

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using Batches = std::vector<std::vector<int64_t>>;

namespace {

constexpr int64_t kSamples = 48, kBatch = 4;

/// The target is the sample's number. If the set augments, the data is drawn when the sample is read.
struct NumberedSet : torch::data::Dataset<NumberedSet> {
  explicit NumberedSet(bool augmenting = false) : augments(augmenting) {}
  torch::data::Example<> get(size_t index) override {
    const auto data = augments ? torch::randint(1'000'000, {1}) : torch::zeros({1}, torch::kLong);
    return {data, torch::full({1}, static_cast<int64_t>(index))};
  }
  [[nodiscard]] std::optional<size_t> size() const override { return kSamples; }
  bool augments;
};

auto shuffled(bool augments = false) {
  return torch::data::make_data_loader(NumberedSet(augments).map(torch::data::transforms::Stack<>()),
                                       static_cast<size_t>(kBatch));
}

/// A user-defined loader that reads its own share of an order that it draws at the start of a pass.
struct OwnShare {
  int64_t rank = 0, world = 1;
  std::vector<accelerate::data::Batch> shard_spec{};
  void shard(int64_t r, int64_t w) { rank = r, world = w; }
  auto begin() {
    shard_spec.clear();
    for (const auto& one : torch::randperm(kSamples).view({world, -1})[rank].split(kBatch))
      shard_spec.push_back({one, one});
    return shard_spec.begin();
  }
  auto end() { return shard_spec.end(); }
};

/// Draws the order of each pass at its start. Several passes may be open at a time.
struct OwnPasses {
  struct Position {
    std::vector<at::Tensor> batches;
    size_t index = 0;
    accelerate::data::Batch operator*() const { return {batches[index], batches[index]}; }
    Position& operator++() {
      ++index;
      return *this;
    }
    bool operator==(std::default_sentinel_t) const { return index == batches.size(); }
  };
  [[nodiscard]] Position begin() const { return {torch::randperm(kSamples).split(kBatch)}; }
  [[nodiscard]] static std::default_sentinel_t end() { return {}; }
};

/// The sample numbers and the drawn data of each batch.
template <typename Loader>
Batches walk_pass(
    Loader&& loader, const std::function<void(size_t)>& after = [](size_t) {}) {
  Batches seen;
  for (auto& batch : loader) {
    seen.push_back(numbers(torch::cat({batch.target.flatten(), batch.data.flatten().to(torch::kLong)})));
    after(seen.size());
  }
  return seen;
}

Batches batches_after(const Batches& all, size_t first) {
  return {all.begin() + static_cast<std::ptrdiff_t>(std::min(first, all.size())), all.end()};
}

/// First and second pass of each rank.
struct TwoPasses {
  explicit TwoPasses(int64_t ranks) : first(static_cast<size_t>(ranks)), second(first) {}
  std::vector<Batches> first, second;
};

template <typename Make>
TwoPasses saved_run(int64_t ranks, const Make& make, const std::filesystem::path& folder, size_t used, bool dropout,
                    const AcceleratorOptions& options = {}) {
  TwoPasses seen(ranks);
  torch::manual_seed(1);
  on_ranks(
      ranks,
      [&](Accelerator& accelerator) {
        const auto rank = static_cast<size_t>(accelerator.process_index());
        auto loader = accelerator.prepare(make());
        accelerator.wait_for_everyone();  // loaders of ranks as threads draw from one generator
        seen.first[rank] = walk_pass(loader, [&](size_t batches) {
          if (dropout) (void)torch::rand({3});
          if (batches == used) accelerator.save_state(folder);
        });
        seen.second[rank] = walk_pass(loader);
      },
      options);
  return seen;
}

/// Passes after load_state() in a run with generators in another state.
template <typename Make>
TwoPasses resumed_run(int64_t ranks, const Make& make, const std::filesystem::path& folder, int64_t skipped,
                      bool dropout, const AcceleratorOptions& options = {}) {
  TwoPasses seen(ranks);
  torch::manual_seed(77);
  on_ranks(
      ranks,
      [&](Accelerator& accelerator) {
        const auto rank = static_cast<size_t>(accelerator.process_index());
        auto loader = accelerator.prepare(make());
        accelerator.load_state(folder);
        accelerator.wait_for_everyone();  // as above
        seen.first[rank] = walk_pass(accelerator.skip_first_batches(loader, skipped), [&](size_t) {
          if (dropout) (void)torch::rand({3});
        });
        seen.second[rank] = walk_pass(loader);
      },
      options);
  return seen;
}

}  // namespace

TEST_CASE("a shuffled loader of torch::data resumes within a pass: each sample once, then the same next pass") {
  for (const bool dropout : {false, true}) {
    const testing::SharedFolder folder;
    const auto make = [&] { return shuffled(/*augments=*/!dropout); };
    const auto saved = saved_run(1, make, folder.path / "c", 3, dropout);
    const auto resumed = resumed_run(1, make, folder.path / "c", 3, dropout);
    CHECK(resumed.first[0] == batches_after(saved.first[0], 3));
    CHECK(resumed.second[0] == saved.second[0]);
    CHECK(saved.first[0] != saved.second[0]);
  }
}

TEST_CASE("several ranks resume a shuffled loader within a pass, also with dispatch") {
  for (const int64_t ranks : {2, 3, 4}) {
    for (const bool dispatch : {false, true}) {
      const testing::SharedFolder folder;
      const AcceleratorOptions options{.dispatch_batches = dispatch};
      const auto make = [&] { return shuffled(/*augments=*/!dispatch); };
      const auto saved = saved_run(ranks, make, folder.path / "c", 2, false, options);
      const auto resumed = resumed_run(ranks, make, folder.path / "c", 2, false, options);
      for (size_t rank = 0; rank < saved.first.size(); ++rank) {
        CHECK(saved.first[rank].size() == static_cast<size_t>(kSamples / kBatch / ranks));
        CHECK(resumed.first[rank] == batches_after(saved.first[rank], 2));
      }
    }
  }
}

TEST_CASE("a foreign loader that shuffles its own shard resumes within a pass") {
  for (const int64_t ranks : {1, 2}) {
    const testing::SharedFolder folder;
    const auto make = [] { return OwnShare(); };
    const auto saved = saved_run(ranks, make, folder.path / "c", 2, false);
    const auto resumed = resumed_run(ranks, make, folder.path / "c", 2, false);
    for (size_t rank = 0; rank < saved.first.size(); ++rank) {
      CHECK(resumed.first[rank] == batches_after(saved.first[rank], 2));
    }
  }
}

TEST_CASE("another world size continues the same order") {
  const testing::SharedFolder folder;
  const auto make = [] { return shuffled(); };
  const auto saved = saved_run(2, make, folder.path / "c", 2, false);
  const auto resumed = resumed_run(1, make, folder.path / "c", 4, false);
  Batches rest;
  for (size_t step = 2; step < saved.first[0].size(); ++step) {
    for (const auto& of_rank : saved.first) rest.push_back(of_rank[step]);
  }
  CHECK(resumed.first[0] == rest);
}

TEST_CASE("interrupted passes, and resumed passes that are saved again, resume in their order") {
  const testing::SharedFolder folder;
  torch::manual_seed(1);
  Accelerator accelerator({.cpu = true});
  auto loader = accelerator.prepare(shuffled());
  Batches seen;
  for (auto& batch : loader) {
    seen.push_back(numbers(batch.target));
    if (seen.size() == 3) break;
  }
  accelerator.save_state(folder.path / "left");
  const auto resume = [](const std::filesystem::path& from, int64_t skipped, const auto& after) {
    torch::manual_seed(5);
    Accelerator another({.cpu = true});
    auto again = another.prepare(shuffled());
    another.load_state(from);
    Batches rest;
    for (auto& batch : another.skip_first_batches(again, skipped)) {
      rest.push_back(numbers(batch.target));
      after(another, rest.size());
    }
    return rest;
  };
  const auto rest = resume(folder.path / "left", 3, [&](Accelerator& another, size_t batches) {
    if (batches == 2) another.save_state(folder.path / "again");
  });
  CHECK(resume(folder.path / "again", 5, [](const auto&...) {}) == batches_after(rest, 2));
  std::set<int64_t> samples;
  for (const auto& batches : {seen, rest}) {
    for (const auto& batch : batches) samples.insert(batch.begin(), batch.end());
  }
  CHECK(static_cast<int64_t>(samples.size()) == kSamples);

  {  // loaded and saved before the start of a pass
    Accelerator another({.cpu = true});
    auto again = another.prepare(shuffled());
    another.load_state(folder.path / "left");
    another.save_state(folder.path / "unused");
  }
  CHECK(resume(folder.path / "unused", 3, [](const auto&...) {}) == rest);
}

TEST_CASE("a nested pass over the same loader, complete or not, keeps the outer order") {
  for (const int64_t ranks : {1, 2}) {
    for (const size_t nested : {size_t{1}, size_t{100}}) {
      CAPTURE(ranks);
      CAPTURE(nested);
      const testing::SharedFolder folder;
      const auto make = [] { return OwnPasses(); };
      TwoPasses saved(ranks);
      torch::manual_seed(1);
      on_ranks(ranks, [&](Accelerator& accelerator) {
        const auto rank = static_cast<size_t>(accelerator.process_index());
        auto loader = accelerator.prepare(make());
        accelerator.wait_for_everyone();  // loaders of ranks as threads draw from one generator
        saved.first[rank] = walk_pass(loader, [&](size_t batches) {
          if (batches == 3) {
            size_t read = 0;
            for ([[maybe_unused]] auto& batch : loader) {
              if (++read == nested) break;
            }
            accelerator.save_state(folder.path / "c");
          }
        });
        accelerator.save_state(folder.path / "between");
        saved.second[rank] = walk_pass(loader);
      });
      const auto resumed = resumed_run(ranks, make, folder.path / "c", 3, false);
      const auto between = resumed_run(ranks, make, folder.path / "between", 2, false);
      for (size_t rank = 0; rank < saved.first.size(); ++rank) {
        CHECK(resumed.first[rank] == batches_after(saved.first[rank], 3));
        CHECK(between.first[rank] == batches_after(saved.second[rank], 2));
      }
    }
  }
}

TEST_CASE("a pass that skips nothing is new, and so is every pass after a save between two passes") {
  const testing::SharedFolder folder;
  const auto make = [] { return shuffled(); };
  const auto saved = saved_run(1, make, folder.path / "within", 12, false);  // saved at the last batch
  CHECK(resumed_run(1, make, folder.path / "within", 0, false).first[0] == saved.second[0]);
  const auto skipped_all = resumed_run(1, make, folder.path / "within", 12, false);
  CHECK(skipped_all.first[0].empty());
  CHECK(skipped_all.second[0] == saved.second[0]);

  torch::manual_seed(1);
  Accelerator accelerator({.cpu = true});
  auto loader = accelerator.prepare(make());
  (void)walk_pass(loader);
  accelerator.save_state(folder.path / "between");
  const auto next = walk_pass(loader);
  CHECK(resumed_run(1, make, folder.path / "between", 2, false).first[0] == batches_after(next, 2));
}

TEST_CASE("a checkpoint without a loader's generator is loaded with a log line") {
  const testing::SharedFolder folder;
  torch::manual_seed(1);
  Accelerator({.cpu = true}).save_state(folder.path / "old");  // a state of versions that did not save it
  accelerate::base::reset_log_once();
  std::vector<std::string> lines;
  const auto before = accelerate::base::set_log_handler([&](auto, std::string_view line) {
    if (line.find("generator") != std::string_view::npos) lines.emplace_back(line);
  });
  const auto resumed = resumed_run(
      1, [] { return shuffled(); }, folder.path / "old", 3, false);
  accelerate::base::set_log_handler(before);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].ends_with(
      "load_state: the checkpoint does not contain the state of the generator at the start of a pass over loader: a "
      "shuffled pass that skips batches has another order; save the checkpoint again with this version"));
  CHECK(resumed.first[0].size() == 9);
}
