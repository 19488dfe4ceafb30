// SPDX-License-Identifier: Apache-2.0
#include "tests/data/support.hpp"
//
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "accelerate/data/combinators/cache.hpp"

using namespace sources;
using Strings = std::vector<std::string>;

TEST_CASE("a cache reads each sample once, when it is first needed") {
  const auto source = std::make_shared<CountedReads>(5);
  const auto cached = data::cache(source);
  CHECK(cached->size() == 5);
  CHECK(read(cached, {3, 1, 3}) == Numbers{3, 1, 3});
  CHECK(source->reads == Numbers{0, 1, 0, 1, 0});
  CHECK(read(cached, {4, 3, 0, 1}) == Numbers{4, 3, 0, 1});
  CHECK(source->reads == Numbers{1, 1, 0, 1, 1});
  for (int round = 0; round < 2; ++round) CHECK(read(cached, {0, 1, 2, 3, 4}) == Numbers{0, 1, 2, 3, 4});
  CHECK(source->reads == Numbers{1, 1, 1, 1, 1});
  CHECK_THROWS_WITH((void)cached->read(index({5})), "cache: sample 5 is requested, there are 5 samples");
}

TEST_CASE("a batch of a cache belongs to the user, and so does the source's batch") {
  const auto cached = data::cache(std::make_shared<CountedReads>(3));
  auto batch = cached->read(index({0, 1, 2}));
  batch.data.add_(100);
  CHECK(read(cached, {0, 1, 2}) == Numbers{0, 1, 2});
}

TEST_CASE("a cache that is first read in inference mode can be read and filled outside") {
  const auto cached = data::cache(std::make_shared<CountedReads>(4));
  {
    const c10::InferenceMode inference;
    CHECK(read(cached, {0, 1}) == Numbers{0, 1});
  }
  CHECK(read(cached, {1, 2, 3}) == Numbers{1, 2, 3});
  CHECK_FALSE(cached->read(index({0})).data.is_inference());
}

TEST_CASE("lists and missing targets are cached; members without rows are kept") {
  using Tree = std::tuple<at::Tensor, Strings, double, at::Tensor>;
  const auto cached = data::cache(data::memory_source(Tree{torch::arange(3), {"a", "b", "c"}, 0.5, {}}));
  for (int round = 0; round < 2; ++round) {
    const auto [tensor, names, number, none] = cached->read(index({2, 0}));
    CHECK(list(tensor) == Numbers{2, 0});
    CHECK(names == Strings{"c", "a"});
    CHECK(number == 0.5);
    CHECK_FALSE(none.defined());
  }
}

TEST_CASE("a cache does not return one batch's members without rows for another batch") {
  using Tree = std::tuple<at::Tensor, at::Tensor, Strings>;
  // Words of the batch, packed into one tensor with the words of all samples.
  struct Packed final : data::SourceOf<Tree> {
    [[nodiscard]] int64_t size() const override { return 6; }
    [[nodiscard]] Tree read(const at::Tensor& indices) const override {
      const auto most = indices.max().template item<int64_t>();
      return {indices.clone(), what == 1 ? at::full({5}, most) : torch::full({1, 4}, NAN)[0],
              what == 2 ? Strings(5, std::to_string(most)) : Strings(4, "same")};
    }
    int what = 0;
  };
  for (const int what : {0, 1, 2}) {
    CAPTURE(what);
    const auto source = std::make_shared<Packed>();
    source->what = what;
    const auto cached = data::cache(std::static_pointer_cast<data::SourceOf<Tree>>(source));
    CHECK(list(std::get<0>(cached->read(index({0, 1, 2})))) == Numbers{0, 1, 2});
    if (what == 0) {
      CHECK(list(std::get<0>(cached->read(index({3, 0, 4})))) == Numbers{3, 0, 4});
    } else {
      CHECK_THROWS_WITH(
          (void)cached->read(index({3, 4, 5})),
          what == 1 ? doctest::Contains("at [1]: shape, dtype or structure") : doctest::Contains("at [2]: shape"));
    }
  }
}

TEST_CASE("two ranks share a cache, which reads every sample once; an empty cache has no batches") {
  const auto source = std::make_shared<CountedReads>(5);
  const auto cached = data::cache(source);
  CHECK(two_ranks(cached) == std::vector<std::vector<Numbers>>{{{0, 1}, {4, 0}}, {{2, 3}, {1, 2}}});
  CHECK(source->reads == Numbers{1, 1, 1, 1, 1});
  const auto nothing = data::cache(numbers(0));
  CHECK(two_ranks(nothing) == std::vector<std::vector<Numbers>>{{}, {}});
  CHECK(read(nothing, {}).empty());
  const auto unread = data::cache(std::make_shared<CountedReads>(2));
  CHECK(read(unread, {}).empty());
  CHECK(read(unread, {1}) == Numbers{1});
}

TEST_CASE("several threads may read a cache of a source that is not thread-safe") {
  struct Alone final : data::Source {
    [[nodiscard]] int64_t size() const override { return 64; }
    [[nodiscard]] data::Batch read(const at::Tensor& indices) const override {
      CHECK_FALSE(reading.exchange(true));
      for (const int64_t i : list(indices)) ++reads[static_cast<size_t>(i)];
      reading = false;
      return {indices.clone(), indices * 10};
    }
    [[nodiscard]] bool thread_safe() const override { return false; }
    mutable std::atomic<bool> reading = false;
    mutable Numbers reads = Numbers(64, 0);
  };
  const auto source = std::make_shared<Alone>();
  const auto cached = data::cache(source);
  CHECK(cached->thread_safe());
  std::vector<std::thread> threads;
  std::vector<Numbers> seen(4);
  for (size_t t = 0; t < seen.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = 0; i < 64; i += 4) {
        const auto batch = list(cached->read(index({i, i + 1, i + 2, i + 3})).data);
        seen[t].insert(seen[t].end(), batch.begin(), batch.end());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(source->reads == Numbers(64, 1));
  for (const auto& all : seen) CHECK(all == list(torch::arange(64)));
}

TEST_CASE("threads that need different samples of a cold cache read the source side by side") {
  struct JobResult final : data::Source {
    [[nodiscard]] int64_t size() const override { return 4; }
    [[nodiscard]] data::Batch read(const at::Tensor& indices) const override {
      ++inside;
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
      while (inside < 2 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
      return {indices.clone(), indices * 10};
    }
    mutable std::atomic<int> inside = 0;
  };
  const auto cached = data::cache(std::make_shared<JobResult>());
  const auto begun = std::chrono::steady_clock::now();
  std::thread other([&] { CHECK(read(cached, {3, 2}) == Numbers{3, 2}); });
  CHECK(read(cached, {0, 1}) == Numbers{0, 1});
  other.join();
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(5));
}

TEST_CASE("a thread waits for a sample that another thread reads, and reads it itself if the other fails") {
  struct Flaky final : data::Source {
    [[nodiscard]] int64_t size() const override { return 2; }
    [[nodiscard]] data::Batch read(const at::Tensor& indices) const override {
      for (const int64_t i : list(indices)) ++reads[static_cast<size_t>(i)];
      if (indices[0].item<int64_t>() == 0 && !failed.exchange(true)) {
        while (reads[1] == 0) std::this_thread::yield();  // the other thread then waits, or will soon
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        throw std::runtime_error("disk");
      }
      return {indices.clone(), indices * 10};
    }
    mutable std::array<std::atomic<int>, 2> reads{};
    mutable std::atomic<bool> failed = false;
  };
  const auto source = std::make_shared<Flaky>();
  const auto cached = data::cache(source);
  std::thread other([&] {
    while (source->reads[0] == 0) std::this_thread::yield();
    CHECK(read(cached, {0, 1}) == Numbers{0, 1});
  });
  CHECK_THROWS_WITH((void)cached->read(index({0})), "disk");
  other.join();
  CHECK(source->reads[0] == 2);
  CHECK(source->reads[1] == 1);
}

TEST_CASE("a cache retries a source that threw") {
  struct Flaky final : data::Source {
    [[nodiscard]] int64_t size() const override { return 2; }
    [[nodiscard]] data::Batch read(const at::Tensor& indices) const override {
      if (++reads == 1) throw std::runtime_error("disk");
      return {indices.clone(), indices * 10};
    }
    mutable int reads = 0;
  };
  const auto cached = data::cache(std::make_shared<Flaky>());
  CHECK_THROWS_WITH((void)cached->read(index({0})), "disk");
  CHECK(read(cached, {1, 0}) == Numbers{1, 0});
}

TEST_CASE("samples with several shapes, or values that depend on the epoch, are refused") {
  struct Growing final : data::SourceOf<at::Tensor> {
    [[nodiscard]] int64_t size() const override { return 3; }
    [[nodiscard]] at::Tensor read(const at::Tensor& indices) const override {
      return torch::zeros({indices.size(0), 1 + indices.max().item<int64_t>()});
    }
  };
  const auto cached = data::cache(std::make_shared<Growing>());
  (void)cached->read(index({0}));
  CHECK_THROWS_WITH((void)cached->read(index({0, 2, 1})),
                    "cache: samples 1 to 2 do not match the previous ones: shape, dtype or structure, or the values "
                    "that are stored once for all of them, differ; a cache "
                    "holds samples of one shape, so it must be below the source that pads them");
  CHECK_THROWS_WITH((void)data::cache(std::make_shared<PassSource>()),
                    "cache: the source returns other samples in each epoch (a random transform); cache the source "
                    "below it, and transform the cache");
}
