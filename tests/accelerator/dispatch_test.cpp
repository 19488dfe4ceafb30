// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <chrono>
#include <list>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "accelerate/base/log.hpp"
#include "accelerate/data/stream_loader.hpp"
#include "tests/accelerator/ranks.hpp"

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using Numbers = std::vector<int64_t>;
using Batches = std::vector<Numbers>;

namespace {

struct Dealt {
  std::vector<Batches> ranks;
  Numbers gathered, remainders;
  int64_t size = -1, total_batch_size = -1;
};

template <typename MakeLoader>
Dealt walk_dispatched(int64_t ranks, const MakeLoader& make_loader, AcceleratorOptions options = {},
                      size_t most = 1000) {
  options.dispatch_batches = true;
  Dealt seen;
  seen.ranks.resize(static_cast<size_t>(ranks));
  on_ranks(
      ranks,
      [&](Accelerator& accelerator) {
        auto loader = accelerator.prepare(make_loader());
        auto& mine = seen.ranks[static_cast<size_t>(accelerator.process_index())];
        for (auto position = loader.begin(); position != loader.end(); ++position) {
          mine.push_back(numbers(position->data));
          const auto all = numbers(accelerator.gather_for_metrics(position->data));
          if (accelerator.is_main_process()) {
            seen.gathered.insert(seen.gathered.end(), all.begin(), all.end());
            seen.remainders.push_back(position.info().remainder);
          }
          if (mine.size() == most) break;
        }
        CHECK(static_cast<int64_t>(mine.size()) == std::min(loader.size(), static_cast<int64_t>(most)));
        if (accelerator.is_main_process()) {
          seen.size = loader.size();
          seen.total_batch_size = loader.total_batch_size();
        }
      },
      options);
  return seen;
}

struct Detections {
  torch::Tensor data;
  std::vector<torch::Tensor> boxes;  // ragged
  std::vector<std::string> names;
  int64_t from_rank = -1;
};
auto tree_members(Detections& d) { return std::tie(d.data, d.boxes, d.names, d.from_rank); }

std::atomic<int> reads_elsewhere = 0;

/// Counts the samples that ranks other than 0 read.
struct OnlyRankZero {
  accelerate::data::Loader inner;
  std::function<bool()> is_rank_zero;
  auto begin() {
    if (!is_rank_zero()) ++reads_elsewhere;
    return inner.begin();
  }
  auto end() { return inner.end(); }
};

}  // namespace

TEST_CASE("rank 0 reads for all ranks, and every sample is gathered once") {
  const auto two = walk_dispatched(2, [] { return counting(10, 2); });
  CHECK(two.ranks[0] == Batches{{0, 1}, {4, 5}, {8}});
  CHECK(two.ranks[1] == Batches{{2, 3}, {6, 7}, {9}});
  CHECK(two.remainders == Numbers{-1, -1, 2});
  CHECK(two.gathered == up_to(10));
  CHECK(two.total_batch_size == 4);
  for (const int64_t ranks : {1, 2, 3, 4}) {
    for (const int64_t samples : {1, 2, 7, 12, 13, 40}) {
      CHECK(walk_dispatched(ranks, [=] { return counting(samples, 4); }).gathered == up_to(samples));
      const auto split = walk_dispatched(ranks, [=] { return counting(samples, 12); }, {.split_batches = true});
      CHECK(split.gathered == up_to(samples));
      CHECK(split.total_batch_size == 12);
    }
  }
  const auto dropping = walk_dispatched(2, [] { return counting(15, 2, {.drop_last = true}); });
  CHECK(dropping.gathered == up_to(12));
  CHECK(dropping.size == 3);
}

TEST_CASE("dispatch uses rank 0's order, shuffled or not, and the other ranks read nothing") {
  reads_elsewhere = 0;
  on_ranks(3,
           [](Accelerator& accelerator) {
             const int64_t rank = accelerator.process_index();
             auto loader = accelerator.prepare(
                 OnlyRankZero{counting(24, 2, {.shuffle = true, .seed = 100 + static_cast<uint64_t>(rank)}),
                              [rank] { return rank == 0; }});
             Numbers all;
             for (auto& batch : loader) {
               const auto gathered = numbers(accelerator.gather_for_metrics(batch.data));
               all.insert(all.end(), gathered.begin(), gathered.end());
             }
             CHECK(all == numbers(accelerate::data::random_sampler(24)->order(100, 0)));
           },
           {.dispatch_batches = true});
  CHECK(reads_elsewhere == 0);
}

TEST_CASE("only rank 0 needs the data: the others receive length and position from it") {
  const auto stream = [](int64_t samples) {
    return accelerate::data::StreamLoader(accelerate::data::make_stream(
                                              [samples] {
                                                return
                                                    [samples, next = int64_t{0}]() mutable -> std::optional<int64_t> {
                                                      return next < samples ? std::optional(next++) : std::nullopt;
                                                    };
                                              },
                                              samples),
                                          {.batch_size = 2});
  };
  const auto lists = [](int64_t samples) {
    std::list<torch::Tensor> batches;
    for (int64_t first = 0; first < samples; first += 2) batches.push_back(torch::arange(first, first + 2));
    return batches;
  };
  const auto batches = [](int64_t samples) {
    accelerate::data::LoaderOptions options{.batch_sampler = [](uint64_t, int64_t) {
      accelerate::data::IndexBatches made;
      for (int64_t first = 0; first < 10; first += 2) made.push_back({first, first + 1});
      return made;
    }};
    return accelerate::data::from_tensors(torch::arange(samples), torch::arange(samples), options);
  };
  const auto held = [](const auto& batch) {
    if constexpr (requires { batch.data; } && !std::same_as<std::remove_cvref_t<decltype(batch)>, torch::Tensor>) {
      return numbers(batch.data);
    } else {
      return numbers(batch);
    }
  };
  std::mutex mutex;
  std::map<std::string, accelerate::state::LoaderState> saved;
  const auto walk = [&](Accelerator& accelerator, const std::string& name, auto made) {
    auto loader = accelerator.prepare(std::move(made));
    CAPTURE(name);
    CHECK(loader.size() == 3);
    if constexpr (requires { loader->state(); }) CHECK(loader.state().samples == 10);
    constexpr bool counts = requires { loader.total_dataset_length(); };
    CHECK(counts == (name != "list"));
    if constexpr (counts) {
      CHECK(loader.total_dataset_length() == 10);
      CHECK(accelerator.skip_first_batches(loader, 1).total_dataset_length() == 10);
    }
    for (int epoch = 0; epoch < 2; ++epoch) {
      Numbers all;
      for (auto& batch : loader) {
        const auto gathered = numbers(accelerator.gather_for_metrics(torch::tensor(held(batch))));
        all.insert(all.end(), gathered.begin(), gathered.end());
      }
      CHECK(all == up_to(10));
      CHECK(loader.size() == 3);
      if constexpr (counts) CHECK(loader.total_dataset_length() == 10);
    }
    CHECK(accelerator.skip_first_batches(loader, 1).size() == 2);
    if constexpr (requires { loader->state(); }) {
      for ([[maybe_unused]] auto& batch : loader) break;
      const auto here = loader.state();
      CHECK(here.epoch == 2);
      CHECK(here.consumed == 4);
      {
        const std::lock_guard lock(mutex);
        CHECK(saved.emplace(name, here).first->second == here);
      }
      loader.load_state(here);
      CHECK(loader.state() == here);
      loader.set_epoch(2);  // keeps the position
      Batches rest;
      for (auto& batch : loader) rest.push_back(held(batch));
      CHECK(rest == (accelerator.is_main_process() ? Batches{{4, 5}, {8}} : Batches{{6, 7}, {9}}));
    }
  };
  on_ranks(2,
           [&](Accelerator& accelerator) {
             const int64_t samples = accelerator.is_main_process() ? 10 : 0;
             walk(accelerator, "ours", counting(samples, 2));
             walk(accelerator, "stream", stream(samples));
             walk(accelerator, "list", lists(samples));
             auto loader = accelerator.prepare(batches(samples));
             CHECK(loader.size() == 3);
             CHECK(loader.total_batch_size() == 4);
             int64_t steps = 0;
             for ([[maybe_unused]] auto& batch : loader) ++steps;
             CHECK(steps == 3);
           },
           {.dispatch_batches = true});
}

TEST_CASE("the report counts a rank's own batches, also with dispatch and for foreign loaders") {
  const auto walked = [](auto loader) {
    CHECK(loader.report().text() == "no batch was taken yet");
    for ([[maybe_unused]] auto& batch : loader) continue;
    return loader.report();
  };
  const auto stream = [] {
    const auto samples = accelerate::data::make_stream([] {
      return [next = int64_t{0}]() mutable -> std::optional<int64_t> {
        return next < 10 ? std::optional(next++) : std::nullopt;
      };
    });
    return accelerate::data::StreamLoader(samples, {.batch_size = 2});
  };
  for (const bool dispatch : {true, false}) {
    on_ranks(2,
             [&](Accelerator& accelerator) {
               const int64_t own = dispatch ? 5 : 6;  // padded if all ranks read
               const auto ours = walked(accelerator.prepare(counting(10, 2)));
               CHECK(ours.batches == 3);
               CHECK(ours.samples == own);
               const auto streamed = walked(accelerator.prepare(stream()));
               CHECK(streamed.batches == 3);
               CHECK(streamed.samples == own);
               CHECK(streamed.single_reader);
               const auto foreign = walked(accelerator.prepare(std::vector<torch::Tensor>(4, torch::zeros({3}))));
               CHECK(foreign.batches == 2);
               CHECK(foreign.samples == 6);
               CHECK(foreign.num_workers == -1);
               const auto all = accelerator.prepare(std::vector<torch::Tensor>(4, torch::zeros({3})));
               const auto rest = accelerator.skip_first_batches(all, 1);
               for ([[maybe_unused]] auto& batch : all) continue;
               for ([[maybe_unused]] auto& batch : rest) continue;
               CHECK(all.report().batches == 2);
               CHECK(rest.report().batches == 1);
             },
             {.dispatch_batches = dispatch});
  }
}

TEST_CASE("a receiving rank waits for its data and reports it after each pass on request") {
  struct Slow final : accelerate::data::Source {
    [[nodiscard]] int64_t size() const override { return 10; }
    [[nodiscard]] accelerate::data::Batch read(const at::Tensor& indices) const override {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return {indices, indices};
    }
  };
  std::multiset<std::string> lines;
  const auto level = accelerate::base::log_level();
  accelerate::base::set_log_level(accelerate::base::LogLevel::info);
  const auto before = accelerate::base::set_log_handler([&](auto, std::string_view line) {
    if (const auto at = line.find("loader: epoch "); at != line.npos) lines.emplace(line.substr(at, 41));
  });
  on_ranks(2,
           [](Accelerator& accelerator) {
             auto loader = accelerator.prepare(
                 accelerate::data::Loader(std::make_shared<const Slow>(), {.batch_size = 2, .log_report = true}));
             for (int epoch = 0; epoch < 2; ++epoch) {
               for ([[maybe_unused]] auto& batch : loader) continue;
               CHECK(loader.report().data_wait_seconds >= 0.02);
               CHECK(loader.report().data_is_bottleneck());
               CHECK(loader.report().num_workers == 0);
             }
           },
           {.dispatch_batches = true});
  accelerate::base::set_log_handler(before);
  accelerate::base::set_log_level(level);
  const std::string zero = "loader: epoch 0: 5 samples in 3 batches, ",
                    one = "loader: epoch 1: 5 samples in 3 batches, ";
  CHECK(lines == std::multiset<std::string>{zero, zero, one, one});
}

TEST_CASE("a rank receives its own batches alone") {
  struct Largest final : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override { most = std::max(most, bytes); }
    [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }
    int64_t most = 0;
  };
  static constexpr int64_t of_batch = 8 * 100'000;
  on_ranks(4,
           [](Accelerator& accelerator) {
             const auto seen = std::make_shared<Largest>();
             auto loader = accelerator.prepare(
                 accelerator.is_main_process() ? std::vector<torch::Tensor>(8, torch::zeros({100'000}, torch::kLong))
                                               : std::vector<torch::Tensor>());
             const c10::DebugInfoGuard watched(c10::DebugInfoKind::PROFILER_STATE, seen);
             int64_t steps = 0;
             for (auto& batch : loader) steps += batch.size(0) == 100'000 ? 1 : 0;
             CHECK(steps == 2);
             if (accelerator.is_main_process()) return;
             CHECK(seen->most >= of_batch);
             CHECK(seen->most < 2 * of_batch);
           },
           {.dispatch_batches = true});
}

TEST_CASE("ragged tensors, strings and numbers reach the rank of their batch") {
  on_ranks(3,
           [](Accelerator& accelerator) {
             std::vector<Detections> batches;
             for (int64_t i = 0; i < 7; ++i) {
               batches.push_back(
                   {torch::full({2}, i), {torch::full({i, 4}, i), torch::zeros({1})}, {"b" + std::to_string(i)}, i});
             }
             auto loader = accelerator.prepare(batches);
             Numbers mine;
             for (auto& batch : loader) {
               mine.push_back(batch.from_rank);
               CHECK(batch.boxes.at(0).equal(torch::full({batch.from_rank, 4}, batch.from_rank)));
               CHECK(batch.names.at(0) == "b" + std::to_string(batch.from_rank));
             }
             // The boxes of batch 6 are not per row, so it cannot be divided: the first batches pad its round.
             const int64_t rank = accelerator.process_index();
             CHECK(mine == Numbers{rank, 3 + rank, rank == 0 ? 6 : rank - 1});
           },
           {.dispatch_batches = true});
}

TEST_CASE("an exception of rank 0's loader is thrown on all ranks after the same batch, and the loader stays usable") {
  struct Flaky final : accelerate::data::Source {
    [[nodiscard]] int64_t size() const override { return 12; }
    [[nodiscard]] accelerate::data::Batch read(const at::Tensor& indices) const override {
      if (broken && indices[0].item<int64_t>() == 10) throw std::runtime_error("disk is gone\nat line 3");
      return {indices, indices};
    }
    mutable bool broken = true;
  };
  on_ranks(
      2,
      [](Accelerator& accelerator) {
        const auto source = std::make_shared<const Flaky>();
        auto loader = accelerator.prepare(accelerate::data::Loader(source, {.batch_size = 2}));
        Numbers seen;
        const auto pass = [&] {
          for (auto& batch : loader) seen.push_back(batch.data[0].item<int64_t>());
        };
        if (accelerator.is_main_process()) {
          CHECK_THROWS_WITH_AS(pass(), "disk is gone\nat line 3", std::runtime_error);
        } else {
          CHECK_THROWS_WITH_AS(
              pass(),
              doctest::Contains("loader: rank 0, which reads for all ranks (dispatch_batches), failed: disk is gone"),
              accelerate::Error);
        }
        CHECK(seen.size() == 2);
        CHECK(loader.state().consumed == 8);
        source->broken = false;
        seen.clear();
        pass();
        CHECK(seen.size() == 3);
      },
      {.dispatch_batches = true});
}

TEST_CASE("a batch that cannot be sent fails on all ranks, after the same number of batches") {
  struct Sparse final : accelerate::data::Source {
    [[nodiscard]] int64_t size() const override { return 12; }
    [[nodiscard]] accelerate::data::Batch read(const at::Tensor& indices) const override {
      const at::Tensor target = torch::eye(2);
      return {indices, indices[0].item<int64_t>() == 6 ? target.to_sparse() : target};  // rank 1's second
    }
  };
  on_ranks(2,
           [](Accelerator& accelerator) {
             auto loader =
                 accelerator.prepare(accelerate::data::Loader(std::make_shared<const Sparse>(), {.batch_size = 2}));
             Numbers seen;
             const auto pass = [&] {
               for (auto& batch : loader) seen.push_back(batch.data[0].item<int64_t>());
             };
             CHECK_THROWS_WITH_AS(pass(), doctest::Contains("must be dense and not quantized to be sent"),
                                  accelerate::Error);
             CHECK(seen.size() == 1);
             CHECK(loader.state().consumed == 4);
           },
           {.dispatch_batches = true});
}

TEST_CASE("samples of a failed first round are not consumed, in an epoch or in the rest of one") {
  struct Broken final : accelerate::data::Source {
    explicit Broken(int64_t one) : sample(one) {}
    [[nodiscard]] int64_t size() const override { return 12; }
    [[nodiscard]] accelerate::data::Batch read(const at::Tensor& indices) const override {
      if (indices[0].item<int64_t>() == sample) throw std::runtime_error("disk is gone");
      return {indices, indices};
    }
    int64_t sample;
  };
  on_ranks(2,
           [](Accelerator& accelerator) {
             for (const int64_t seen : {0, 4}) {
               auto loader = accelerator.prepare(accelerate::data::Loader(std::make_shared<Broken>(seen + 2),
                                                                          {.batch_size = 2}));  // rank 1's first batch
               auto begun = loader.state();
               begun.consumed = seen;
               loader.load_state(begun);
               CHECK_THROWS((void)loader.begin());
               CHECK(loader.state().consumed == seen);
               CHECK(loader.state().epoch == 0);
             }
           },
           {.dispatch_batches = true});
}

TEST_CASE("a rank that breaks at another batch than rank 0 gets an error and no samples of another pass") {
  for (const bool first_longer : {true, false}) {  // on rank 1
    on_ranks(
        2,
        [&](Accelerator& accelerator) {
          auto loader = accelerator.prepare(counting(40, 2));
          const auto walk = [&](int64_t most) {
            for ([[maybe_unused]] auto& batch : loader) {
              if (--most == 0) break;
            }
          };
          const bool reads = accelerator.is_main_process();
          if (reads) {
            walk(first_longer ? 1 : 2);
            if (first_longer) walk(1);
          } else if (first_longer) {
            CHECK_THROWS_WITH_AS(
                walk(2),
                doctest::Contains("loader: this rank is in pass 1 of the loader, and rank 0, which reads for all ranks "
                                  "(dispatch_batches), gives batches of its pass 2; break out of the loop at the same "
                                  "batch on all ranks, or turn dispatch_batches off"),
                accelerate::Error);
          } else {
            walk(1);
            CHECK_THROWS_WITH_AS(walk(1),
                                 doctest::Contains("in pass 2 of the loader, and rank 0, which reads for all "
                                                   "ranks (dispatch_batches), gives batches of its pass 1;"),
                                 accelerate::Error);
          }
        },
        {.dispatch_batches = true});
  }
}

TEST_CASE("loops may break early and nest") {
  on_ranks(2,
           [](Accelerator& accelerator) {
             auto [outer, inner] = accelerator.prepare(counting(8, 2), counting(6, 1));
             Numbers sizes;
             for (auto& batch : outer) {
               int64_t count = 0;
               for ([[maybe_unused]] auto& part : inner) {
                 if (++count == 2 && batch.data[0].item<double>() >= 4) break;
               }
               sizes.push_back(count);
             }
             CHECK(sizes == Numbers{3, 2});
           },
           {.dispatch_batches = true});
}

TEST_CASE("the state is the position of the ranks, not of rank 0's reader, and another run resumes it") {
  const auto make = [] { return counting(22, 2, {.shuffle = true, .seed = 4}); };
  const auto whole = walk_dispatched(2, make);
  accelerate::state::LoaderState saved;
  std::vector<accelerate::state::LoaderState> states(2);
  on_ranks(2,
           [&](Accelerator& accelerator) {
             auto loader = accelerator.prepare(make());
             for (auto position = loader.begin(); position != loader.end(); ++position) {
               if (position.info().index == 1) break;
             }
             states[static_cast<size_t>(accelerator.process_index())] = loader.state();
           },
           {.dispatch_batches = true});
  CHECK(states[0] == states[1]);
  CHECK(states[0].consumed == 8);
  std::vector<Batches> rest(2);
  on_ranks(2,
           [&](Accelerator& accelerator) {
             auto loader = accelerator.prepare(make());
             loader.load_state(states[0]);
             for (auto& batch : loader)
               rest[static_cast<size_t>(accelerator.process_index())].push_back(numbers(batch.data));
             CHECK(loader.state().epoch == 1);
             CHECK(loader->epoch() == 1);
             auto last = accelerator.skip_first_batches(loader, 5);
             int64_t batches = 0;
             for ([[maybe_unused]] auto& batch : last) ++batches;
             CHECK(batches == 1);
             CHECK(last.size() == 1);
           },
           {.dispatch_batches = true});
  for (size_t rank = 0; rank < 2; ++rank) {
    CHECK(rest[rank] == Batches(whole.ranks[rank].begin() + 2, whole.ranks[rank].end()));
  }
}

TEST_CASE("an interrupted epoch resumes on any world size: each sample once, in one process's order") {
  struct Part {
    Numbers gathered;
    accelerate::state::LoaderState state;
    int64_t steps = 0;
  };
  std::mt19937 random(9);
  const auto pick = [&](int64_t from, int64_t to) { return std::uniform_int_distribution<int64_t>(from, to)(random); };
  int64_t interrupted = 0;
  for (int i = 0; i < 60; ++i) {
    const bool split = pick(0, 2) == 0;
    const int64_t samples = pick(1, 40);
    const auto part = [&](int64_t ranks, int64_t batch_size, const accelerate::state::LoaderState* from, int64_t most) {
      Part seen;
      on_ranks(ranks,
               [&](Accelerator& accelerator) {
                 auto loader = accelerator.prepare(counting(samples, batch_size, {.shuffle = true, .seed = 3}));
                 if (from != nullptr) loader.load_state(*from);
                 int64_t steps = 0;
                 for (auto& batch : loader) {
                   const auto all = numbers(accelerator.gather_for_metrics(batch.data));
                   if (accelerator.is_main_process()) seen.gathered.insert(seen.gathered.end(), all.begin(), all.end());
                   if (++steps == most) break;
                 }
                 if (!accelerator.is_main_process()) return;
                 seen.steps = steps;
                 seen.state = loader.state();
               },
               {.split_batches = split, .dispatch_batches = true});
      return seen;
    };
    const int64_t before = pick(1, 4);
    const int64_t after = pick(1, 4);
    const auto batch_size = [&] { return split ? 12 : pick(1, 4); };  // 12 is divisible for all numbers of ranks
    const int64_t first_size = batch_size();
    const auto whole = part(before, first_size, nullptr, 1000);
    const auto order = numbers(accelerate::data::random_sampler(samples)->order(3, 0));
    CHECK(whole.gathered == order);
    if (whole.steps < 2) continue;
    auto all = part(before, first_size, nullptr, pick(1, whole.steps - 1));
    const auto rest = part(after, batch_size(), &all.state, 1000);
    all.gathered.insert(all.gathered.end(), rest.gathered.begin(), rest.gathered.end());
    CHECK(all.gathered == order);
    CHECK(rest.state.epoch == 1);
    CHECK(rest.state.consumed == 0);
    ++interrupted;
  }
  CHECK(interrupted > 20);
}

TEST_CASE("padding of the last round is the front of the epoch, also in resumed and skipping passes") {
  const auto numbered = [] { return counting(17, 2, {.shuffle = true, .seed = 6}); };
  const auto streamed = [] {
    return accelerate::data::StreamLoader(accelerate::data::make_stream([] {
                                            return [next = int64_t{0}]() mutable -> std::optional<torch::Tensor> {
                                              if (next == 17) return std::nullopt;
                                              return torch::tensor(next++);
                                            };
                                          }),
                                          {.batch_size = 2});
  };
  const auto check = [](const auto& make, const auto& of) {
    for (const bool skips : {false, true}) {
      on_ranks(2,
               [&](Accelerator& accelerator) {
                 const auto walk = [&](auto loader, int64_t most) {
                   Batches all;
                   for (auto& batch : loader) {
                     all.push_back(numbers(of(batch)));
                     if (--most == 0) break;
                   }
                   return all;
                 };
                 const auto whole = walk(accelerator.prepare(make()), 100);
                 auto first = accelerator.prepare(make());
                 (void)walk(first, 2);
                 auto second = accelerator.prepare(make());
                 if (!skips) second.load_state(first.state());
                 const auto rest = skips ? walk(accelerator.skip_first_batches(second, 2), 100) : walk(second, 100);
                 CHECK(rest == Batches(whole.begin() + 2, whole.end()));
               },
               {.dispatch_batches = true});
    }
  };
  check(numbered, [](const accelerate::data::Batch& batch) { return batch.data; });
  check(streamed, [](const torch::Tensor& batch) { return batch; });
}

TEST_CASE("the reading rank and the others have the same position after a break and at the last batch") {
  on_ranks(2,
           [](Accelerator& accelerator) {
             auto loader = accelerator.prepare(counting(16, 2));
             for ([[maybe_unused]] auto& batch : loader) break;
             loader.set_epoch(0);  // no state is loaded, so the epoch restarts
             CHECK(loader.state().consumed == 0);
             for ([[maybe_unused]] auto& batch : loader) break;
             accelerator.wait_for_everyone();
             CHECK(loader.state().consumed == 4);
             CHECK(loader->state().epoch == 0);
             // Re-sharded without a rank that reads for all, each loader begins the next epoch.
             Accelerator other(accelerator.group(), {.cpu = true, .dispatch_batches = false});
             auto own = other.prepare(*loader.unwrap());
             int64_t batches = 0;
             for ([[maybe_unused]] auto& batch : own) ++batches;
             CHECK(batches == 4);
           },
           {.dispatch_batches = true});
  on_ranks(2,
           [](Accelerator& accelerator) {
             auto loader = accelerator.prepare(counting(10, 2, {.drop_last = true}));
             for (auto position = loader.begin(); position != loader.end(); ++position) {
               if (!position.info().last) continue;
               CHECK(loader.state().epoch == 1);
               CHECK(loader.state().consumed == 0);
             }
           },
           {.dispatch_batches = true});
}

TEST_CASE("a batch that cannot be sent is refused by prepare()") {
  struct Opened {
    torch::Tensor data;
    std::shared_ptr<int> file;
    auto tree_members() { return std::tie(data, file); }
  };
  on_ranks(2,
           [](Accelerator& accelerator) {
             std::list<Opened> loader;
             CHECK_THROWS_WITH_AS(
                 (void)accelerator.prepare(loader),
                 doctest::Contains(
                     "prepare: dispatch_batches is on, and a batch of this loader holds something that cannot be "
                     "sent to other ranks; a batch is made of tensors, numbers, enums, strings, and pairs, "
                     "tuples, vectors, maps, optionals and structs of them, or turn dispatch_batches off"),
                 accelerate::Error);
           },
           {.dispatch_batches = true});
}
