// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <chrono>
#include <future>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "accelerate/base/log.hpp"
#include "accelerate/data/loader.hpp"
#include "accelerate/data/loader_state.hpp"
#include "accelerate/data/stream_loader.hpp"
#include "tests/data/iteration.hpp"

using namespace accelerate::data;
using accelerate::state::LoaderState;
using sources::Batches;
using sources::list;
using sources::Numbers;
using sources::pass;
using sources::Positions;

namespace {

/// 0, 1, ..., n-1; fails before sample `bad`.
StreamPtr<int64_t> counting_stream(int64_t n, std::optional<int64_t> size = {}, int64_t bad = -1) {
  return make_stream(
      [=] {
        return [=, next = int64_t{0}]() mutable -> std::optional<int64_t> {
          if (next == bad) throw std::runtime_error("the line is dead");
          return next < n ? std::optional(next++) : std::nullopt;
        };
      },
      size);
}

/// Lines from level info on that are logged during the call.
std::vector<std::string> lines_of(const std::function<void()>& call) {
  accelerate::base::reset_log_once();
  std::vector<std::string> lines;
  const auto level = accelerate::base::log_level();
  accelerate::base::set_log_level(accelerate::base::LogLevel::info);
  const auto before = accelerate::base::set_log_handler([&](auto, std::string_view line) { lines.emplace_back(line); });
  call();
  accelerate::base::set_log_handler(before);
  accelerate::base::set_log_level(level);
  return lines;
}

Batches of(int64_t samples, int64_t batch_size, const ShardSpec& shard_spec, bool drop_last = false) {
  StreamLoader loader(counting_stream(samples, samples), {.batch_size = batch_size, .drop_last = drop_last});
  loader.shard(shard_spec);
  const auto batches = pass(loader);
  CHECK(loader.size() == static_cast<int64_t>(batches.size()));
  return batches;
}

}  // namespace

// Accelerate 1.15's IterableDatasetShard.
TEST_CASE("each rank keeps its part of every window, and the last window is padded from the first") {
  CHECK(of(10, 4, {.rank = 0, .world_size = 2}) == Batches{{0, 1, 2, 3}, {8, 9, 0, 1}});
  CHECK(of(10, 4, {.rank = 1, .world_size = 2}) == Batches{{4, 5, 6, 7}, {2, 3, 4, 5}});
  CHECK(of(10, 4, {.rank = 1, .world_size = 2}, true) == Batches{{4, 5, 6, 7}});
  CHECK(of(10, 4, {.rank = 0, .world_size = 2, .split_batches = true}) == Batches{{0, 1}, {4, 5}, {8, 9}});
  CHECK(of(10, 4, {.rank = 1, .world_size = 2, .split_batches = true}) == Batches{{2, 3}, {6, 7}, {0, 1}});
  CHECK(of(10, 4, {.rank = 1, .world_size = 2, .split_batches = true}, true) == Batches{{2, 3}, {6, 7}});
  CHECK(of(2, 4, {.rank = 1, .world_size = 2}) == Batches{{0, 1, 0, 1}});
  CHECK(of(2, 4, {.rank = 1, .world_size = 2, .split_batches = true}) == Batches{{0, 1}});
  CHECK(of(16, 4, {.rank = 2, .world_size = 3}) == Batches{{8, 9, 10, 11}, {4, 5, 6, 7}});
  CHECK(of(13, 6, {.rank = 2, .world_size = 3, .split_batches = true}) == Batches{{4, 5}, {10, 11}, {3, 4}});
  CHECK(of(10, 4, {.rank = 0, .world_size = 3}, true).empty());
}

TEST_CASE("a stream of any unknown length is sharded like numbered samples") {
  std::mt19937 random(3);
  const auto pick = [&](int64_t from, int64_t to) { return std::uniform_int_distribution<int64_t>(from, to)(random); };
  for (int i = 0; i < 2000; ++i) {
    const int64_t samples = pick(0, 50);
    const int64_t world = pick(1, 4);
    ShardSpec shard_spec{.rank = pick(0, world - 1),
                         .world_size = world,
                         .even_batches = pick(0, 2) > 0,
                         .split_batches = pick(0, 2) == 0};
    const int64_t batch_size = pick(1, 5) * (shard_spec.split_batches ? world : 1);
    const bool drop_last = pick(0, 3) == 0;
    LoaderOf<at::Tensor> numbered(std::make_shared<Positions>(samples),
                                  {.batch_size = batch_size, .drop_last = drop_last});
    StreamLoader stream(counting_stream(samples), {.batch_size = batch_size, .drop_last = drop_last});
    numbered.shard(shard_spec);
    stream.shard(shard_spec);
    auto expected = numbered.begin();
    int64_t steps = 0;
    for (auto position = stream.begin(); position != stream.end(); ++position, ++expected, ++steps) {
      REQUIRE(expected != numbered.end());
      CHECK(list(*position) == list(*expected));
      CHECK(position.info().index == expected.info().index);
      CHECK(position.info().last == expected.info().last);
      if (position.info().last && world > 1) CHECK(position.info().remainder == expected.info().remainder);
      CHECK(stream.state().epoch == numbered.state().epoch);
      CHECK(stream.state().consumed == numbered.state().consumed);
    }
    CHECK(expected == numbered.end());
    CHECK(stream.epoch() == 1);
    CHECK_FALSE(stream.size());
    if (steps < 2) continue;

    const int64_t seen = pick(1, steps - 1);  // interrupted, and resumed by a new process
    stream.set_epoch(0);
    (void)pass(stream, seen);
    const nlohmann::json saved = stream.state();
    StreamLoader resumed(counting_stream(samples), {.batch_size = batch_size, .drop_last = drop_last});
    resumed.shard(shard_spec);
    resumed.load_state(loader_state_from_json(saved));
    numbered.set_epoch(0);
    const auto all = pass(numbered);
    CHECK(pass(resumed) == Batches(all.begin() + seen, all.end()));
    CHECK(pass(resumed) == all);
  }
}

TEST_CASE("a stream that is resumed on other ranks re-shards the remaining samples") {
  StreamLoader two(counting_stream(20), {.batch_size = 2});
  two.shard({.rank = 1, .world_size = 2});
  (void)pass(two, 2);
  CHECK(two.state().consumed == 8);
  StreamLoader one(counting_stream(20), {.batch_size = 4});
  one.load_state(two.state());
  CHECK(pass(one) == Batches{{8, 9, 10, 11}, {12, 13, 14, 15}, {16, 17, 18, 19}});
}

TEST_CASE("a resumed stream that skips continues at a complete batch, like a numbered loader") {
  StreamLoader two(counting_stream(20), {.batch_size = 2});
  (void)pass(two, 3);
  auto four = StreamLoader(counting_stream(20), {.batch_size = 4}).skip_first_batches(2);
  four.load_state(two.state());
  LoaderOf<at::Tensor> numbered(std::make_shared<Positions>(20), {.batch_size = 4});
  auto skipping = numbered.skip_first_batches(2);
  auto state = two.state();
  state.samples = 20;
  skipping.load_state(state);
  const auto expected = pass(skipping);
  CHECK(expected.front() == Numbers{6, 7, 8, 9});
  CHECK(pass(four) == expected);
}

TEST_CASE("a random stream gets seed and epoch") {
  std::vector<std::pair<uint64_t, int64_t>> calls;
  const auto stream = make_stream(
      [&](const ReadContext& context) {
        calls.emplace_back(context.seed, context.epoch);
        return [left = 2]() mutable -> std::optional<int64_t> { return left-- > 0 ? std::optional(7) : std::nullopt; };
      },
      2, /*seeded=*/true);
  StreamLoader loader(stream, {.seed = 5});
  CHECK(loader.shuffles());
  (void)pass(loader);
  loader.set_epoch(4);
  (void)pass(loader);
  CHECK(calls == std::vector<std::pair<uint64_t, int64_t>>{{5, 0}, {5, 4}});
}

TEST_CASE("a stream's exception is thrown after the earlier batches, and one log line names the sample") {
  for (const int64_t workers : {0, 1}) {
    for (const int64_t rank : {0, 1}) {
      StreamLoader loader(counting_stream(11, {}, 9), {.batch_size = 2, .num_workers = workers});
      loader.shard({.rank = rank, .world_size = 2});
      Batches seen;
      bool last = false;
      const auto walk = [&] {
        for (auto position = loader.begin(); position != loader.end(); ++position) {
          seen.push_back(list(*position));
          last = position.info().last;
        }
      };
      const auto lines = lines_of([&] { CHECK_THROWS_WITH(walk(), "the line is dead"); });
      CHECK(lines == std::vector<std::string>{"stream: sample 9 could not be read: the line is dead"});
      CHECK(seen == (rank == 0 ? Batches{{0, 1}, {4, 5}} : Batches{{2, 3}, {6, 7}}));
      CHECK_FALSE(last);
    }
  }
}

TEST_CASE("a log line names a sample that fails among those that an earlier run consumed") {
  StreamLoader before(counting_stream(20), {.batch_size = 2});
  (void)pass(before, 4);
  const auto fails = [&](int64_t batch_size) {
    StreamLoader loader(counting_stream(20, {}, 3), {.batch_size = batch_size});
    loader.load_state(before.state());
    return lines_of([&] { CHECK_THROWS_WITH((void)pass(loader), "the line is dead"); });
  };
  const std::string line = "stream: sample 3 could not be read: the line is dead";
  CHECK(fails(2) == std::vector<std::string>{line});
  CHECK(fails(4).back() == line);  // after re-sharding
}

TEST_CASE("a stream's worker has the same seed on all ranks, because all read the same samples") {
  for (const int64_t rank : {0, 1}) {
    std::set<uint64_t> seeds;
    const auto stream = make_stream([&] {
      return [&, left = 40]() mutable -> std::optional<int64_t> {
        const auto worker = get_worker_info();  // also for the initial reads
        seeds.insert(worker ? worker->seed : 0);
        return left-- > 0 ? std::optional(7) : std::nullopt;
      };
    });
    StreamLoader loader(stream, {.batch_size = 2, .seed = 5, .num_workers = 1});
    loader.shard({.rank = rank, .world_size = 2});
    (void)pass(loader);
    CHECK(seeds == std::set<uint64_t>{base_seed_of(5, 0, 0)});
  }
}

TEST_CASE("samples of any kind are collated, by default or by a function") {
  using Sample = std::pair<at::Tensor, std::string>;
  const auto stream = make_stream([] {
    return [next = 0]() mutable -> std::optional<Sample> {
      ++next;
      return next > 3 ? std::nullopt : std::optional<Sample>({torch::full({2}, next), std::to_string(next)});
    };
  });
  StreamLoader loader(stream, {.batch_size = 3});
  auto position = loader.begin();
  CHECK(position->first.equal(torch::tensor({{1, 1}, {2, 2}, {3, 3}})));
  CHECK(position->second == std::vector<std::string>{"1", "2", "3"});
  StreamLoader counted(stream, StreamOptions{.batch_size = 2}, [](const std::vector<Sample>& samples) {
    return torch::tensor(static_cast<int64_t>(samples.size()));
  });
  CHECK(pass(counted) == Batches{{2}, {1}});
}

TEST_CASE("skip_first_batches reads and drops batches, keeps the padding, and continues at a loaded state") {
  for (const int64_t world : {1, 2, 3}) {
    const auto loader_of = [&] {
      StreamLoader loader(counting_stream(22, 22), {.batch_size = 2});
      loader.shard({.rank = world - 1, .world_size = world});
      return loader;
    };
    auto plain = loader_of();
    const auto all = pass(plain);
    auto skipping = loader_of().skip_first_batches(1).skip_first_batches(1);
    CHECK(skipping.size() == static_cast<int64_t>(all.size()) - 2);
    CHECK(skipping.begin().info().index == 0);
    skipping.set_epoch(0);
    CHECK(pass(skipping, 1) == Batches{all[2]});
    auto again = loader_of().skip_first_batches(2);
    again.load_state(skipping.state());
    CHECK(pass(again) == Batches(all.begin() + 3, all.end()));
    CHECK(pass(again).size() == all.size() - 2);
    auto resumed = loader_of();
    resumed.load_state(skipping.state());
    auto later = resumed.skip_first_batches(1);
    CHECK(pass(later) == Batches(all.begin() + 4, all.end()));
    auto none = loader_of().skip_first_batches(99);
    CHECK(none.size() == 0);
    CHECK(pass(none).empty());
    CHECK(none.epoch() == 1);
    CHECK(pass(plain) == all);
  }
  CHECK_THROWS_WITH((void)StreamLoader(counting_stream(3)).skip_first_batches(-1),
                    "skip_first_batches: -1 batches are to be skipped, must be at least 0");
}

TEST_CASE("a pass that fails to start keeps the resume point for the next attempt") {
  int64_t tries = 0;
  const auto stream = make_stream([&] {
    if (++tries == 2) throw std::runtime_error("no such host");
    return [next = int64_t{0}]() mutable -> std::optional<int64_t> {
      return next < 8 ? std::optional(next++) : std::nullopt;
    };
  });
  StreamLoader loader(stream, {.batch_size = 2});
  (void)pass(loader, 2);
  loader.load_state(loader.state());
  CHECK_THROWS_WITH((void)loader.begin(), "no such host");
  CHECK(loader.state().consumed == 4);
  CHECK(pass(loader) == Batches{{4, 5}, {6, 7}});
}

TEST_CASE("padding is not affected by the user's changes to the stream's first samples") {
  const auto stream = make_stream([] {
    return [next = int64_t{0}]() mutable -> std::optional<at::Tensor> {
      return next < 5 ? std::optional(torch::full({1}, next++)) : std::nullopt;
    };
  });
  StreamLoader loader(stream, StreamOptions{.batch_size = 2},
                      [](const std::vector<at::Tensor>& samples) { return samples; });  // no copy
  loader.shard({.rank = 0, .world_size = 2});
  std::vector<Numbers> seen;
  for (auto& samples : loader) {
    for (auto& sample : samples) seen.push_back(list(sample.add_(100)));
  }
  CHECK(seen == std::vector<Numbers>{{100}, {101}, {104}, {100}});
}

TEST_CASE("a worker returns the same batches and errors in every epoch as no worker") {
  for (const int64_t world : {1, 2}) {
    const auto loader_of = [&](int64_t workers, int64_t bad = -1) {
      StreamLoader loader(counting_stream(11, {}, bad), {.batch_size = 2, .num_workers = workers});
      loader.shard({.rank = world - 1, .world_size = world});
      return loader;
    };
    auto with = loader_of(1);
    auto without = loader_of(0);
    for (int epoch = 0; epoch < 3; ++epoch) {
      auto expected = without.begin();
      int64_t batches = 0;
      for (auto position = with.begin(); position != with.end(); ++position, ++expected, ++batches) {
        CHECK(list(*position) == list(*expected));
        CHECK(position.info() == expected.info());
        CHECK(with.state() == without.state());  // not the position up to which the worker has read
      }
      CHECK(expected == without.end());
      CHECK(with.report().batches == batches);
    }
    (void)pass(with, 2);  // ends early
    const auto all = pass(without);
    auto resumed = loader_of(1);
    resumed.load_state(with.state());
    CHECK(pass(resumed) == Batches(all.begin() + 2, all.end()));
    CHECK(pass(with) == all);
    auto failing = loader_of(1, 9);
    CHECK_THROWS_WITH((void)pass(failing), "the line is dead");
    CHECK(failing.state().consumed == 8);
  }
}

TEST_CASE("the next batch is prefetched while a batch is held, and the reported position stays that batch's") {
  for (const int64_t workers : {0, 1}) {
    StreamLoader loader(counting_stream(5), {.batch_size = 2, .num_workers = workers});
    auto position = loader.begin();
    const auto next = [&] {
      auto* ahead = position.read_ahead();
      while (ahead == nullptr) ahead = position.read_ahead();  // the worker has not read it yet
      return list(*ahead);
    };
    CHECK(next() == Numbers{2, 3});
    CHECK(list(*position) == Numbers{0, 1});
    CHECK(position.info().index == 0);
    CHECK(loader.state().consumed == 2);
    ++position;
    CHECK(list(*position) == Numbers{2, 3});
    CHECK(next() == Numbers{4});
    CHECK_FALSE(position.info().last);
    ++position;
    CHECK(list(*position) == Numbers{4});
    CHECK(position.info().last);
    CHECK(position.read_ahead() == nullptr);
    ++position;
    CHECK(position == loader.end());
    CHECK(loader.report().batches == 3);
    CHECK(loader.report().samples == 5);
  }
}

TEST_CASE("one thread serves all passes of a stream; a read that hangs is named after the timeout") {
  struct Watch {  // outlives the hanging thread
    std::mutex mutex;
    std::set<std::thread::id> readers;
    std::promise<void> opened;
    std::shared_future<void> open{opened.get_future()};
    int64_t passes = 0;
  };
  const auto watch = std::make_shared<Watch>();
  const auto stream = make_stream([watch] {
    return [watch, hangs = ++watch->passes == 3, next = int64_t{0}]() mutable -> std::optional<int64_t> {
      if (next == 6 && hangs) watch->open.wait();
      const std::lock_guard lock(watch->mutex);
      watch->readers.insert(std::this_thread::get_id());
      return next < 8 ? std::optional(next++) : std::nullopt;
    };
  });
  StreamLoader loader(stream, {.batch_size = 2, .num_workers = 1, .timeout = std::chrono::seconds(1)});
  (void)pass(loader);
  (void)pass(loader);
  CHECK(watch->readers.size() == 1);
  CHECK_FALSE(watch->readers.contains(std::this_thread::get_id()));
  std::string text;
  try {
    (void)pass(loader);
  } catch (const accelerate::Error& error) {
    text = error.what();
  }
  CHECK(text.starts_with(
      "loader: batch 2 of a stream, or the next one, which shows whether it is the last, is not ready after 1 s "
      "(timeout); worker 0 has been reading it for "));
  CHECK(text.ends_with(" s, now sample 6. Check its source, or set a longer timeout"));
  watch->opened.set_value();
  CHECK(pass(loader) == Batches{{0, 1}, {2, 3}, {4, 5}, {6, 7}});
  CHECK(loader.report().samples == 8);
  CHECK(loader.report().num_workers == 1);
  CHECK(loader.report().single_reader);
}

TEST_CASE("a stream that hangs at its first sample times out, and nested reads do not change the sample's name") {
  const auto at = [](int64_t sample) {
    const auto opened = std::make_shared<std::promise<void>>();  // outlives the hanging thread
    const auto stream = make_stream([=, open = opened->get_future().share()] {
      return [=, next = int64_t{0}]() mutable -> std::optional<int64_t> {
        now_reading(700);  // sample number of a source
        if (next == sample) open.wait();
        return next < 8 ? std::optional(next++) : std::nullopt;
      };
    });
    StreamLoader loader(stream,
                        StreamOptions{.batch_size = 2, .num_workers = 1, .timeout = std::chrono::milliseconds(200)});
    std::string text;
    try {
      (void)pass(loader);
    } catch (const accelerate::Error& error) {
      text = error.what();
    }
    opened->set_value();
    return text;
  };
  CHECK(at(0).ends_with(" s, now sample 0. Check its source, or set a longer timeout"));
  CHECK(at(3).ends_with(" s, now sample 3. Check its source, or set a longer timeout"));
}

TEST_CASE("skipping the samples of another run may take longer than the timeout while it makes progress") {
  const auto stream = make_stream([] {
    return [next = int64_t{0}]() mutable -> std::optional<int64_t> {
      if (next < 8) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      return next < 12 ? std::optional(next++) : std::nullopt;
    };
  });
  StreamLoader before(counting_stream(12), {.batch_size = 2});
  (void)pass(before, 4);
  for (const int64_t batch_size : {2, 4}) {  // 4: re-sharded
    StreamLoader loader(
        stream, StreamOptions{.batch_size = batch_size, .num_workers = 1, .timeout = std::chrono::milliseconds(400)});
    loader.load_state(before.state());
    CHECK(pass(loader) == (batch_size == 2 ? Batches{{8, 9}, {10, 11}} : Batches{{8, 9, 10, 11}}));
  }
}

TEST_CASE("the outer loop is active again after an inner loop fails to start") {
  for (const int64_t workers : {0, 1}) {
    const auto stream = make_stream([](const ReadContext& context) {
      return [epoch = context.epoch, next = int64_t{0}]() mutable -> std::optional<int64_t> {
        if (epoch == 1) throw std::runtime_error("the line is dead");
        return next < 12 ? std::optional(next++) : std::nullopt;
      };
    });
    StreamLoader loader(stream, {.batch_size = 2, .num_workers = workers});
    auto outer = loader.begin();
    ++outer;
    const LoaderState before = loader.state();
    CHECK_THROWS_WITH((void)loader.begin(), "the line is dead");
    CHECK(loader.state() == before);
    ++outer;
    CHECK(loader.state().consumed == 6);
  }
}

TEST_CASE("a log line names the samples of a batch that cannot be collated, padding included") {
  for (const int64_t workers : {0, 1}) {
    const auto line_of = [&](int64_t bad, const ShardSpec& shard_spec) {
      const auto collate = [bad](const std::vector<int64_t>& samples) {
        if (samples.front() == bad) throw std::runtime_error("they do not fit");
        return torch::tensor(samples);
      };
      StreamLoader loader(counting_stream(9), StreamOptions{.batch_size = 2, .num_workers = workers}, collate);
      loader.shard(shard_spec);
      const auto lines = lines_of([&] { CHECK_THROWS_WITH((void)pass(loader), "they do not fit"); });
      REQUIRE(lines.size() == 1);
      return lines[0];
    };
    const auto line = [](const std::string& batch) {
      return "loader: batch " + batch + " could not be read: they do not fit";
    };
    CHECK(line_of(4, {}) == line("2 (samples 4, 5)"));
    CHECK(line_of(6, {.rank = 1, .world_size = 2}) == line("1 (samples 6, 7)"));
    CHECK(line_of(8, {.rank = 0, .world_size = 2}) == line("2 (samples 8, 0)"));
    CHECK(line_of(1, {.rank = 1, .world_size = 2}) == line("2 (samples 1, 2)"));
  }
}

TEST_CASE("a stream reports each pass on request, and its number of samples") {
  StreamLoader loader(counting_stream(5, 5), {.batch_size = 2, .log_report = true});
  CHECK(loader.sample_count() == 5);
  CHECK(loader.size() == 3);
  CHECK(loader.total_batch_size() == 2);
  CHECK_FALSE(StreamLoader(counting_stream(5)).sample_count());
  const auto lines = lines_of([&] {
    (void)pass(loader, 1);  // ends early, so it does not reach the end of the stream
    (void)pass(loader);
    (void)pass(loader);
  });
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].starts_with("loader: epoch 1: 5 samples in 3 batches, "));
  CHECK(lines[1].starts_with("loader: epoch 2: 5 samples in 3 batches, "));
  CHECK(loader.report().samples == 5);
}

TEST_CASE("log lines state why a stream's pass is empty, and the number of repeated samples if its length is known") {
  const auto none_of = [](int64_t samples, const StreamOptions& options, const ShardSpec& shard_spec,
                          int64_t skipped = 0) {
    auto loader = StreamLoader(counting_stream(samples), options).skip_first_batches(skipped);
    loader.shard(shard_spec);
    const auto lines = lines_of([&] { CHECK(pass(loader).empty()); });
    REQUIRE(lines.size() == 1);
    return lines[0];
  };
  const std::string start = "loader: this rank has no batch in a whole pass: ";
  CHECK(none_of(0, {}, {}) == start + "its stream is empty, 0 samples");
  CHECK(none_of(5, {.batch_size = 2}, {}, 4) == start + "8 samples were seen or are skipped, and its stream has 5");
  CHECK(none_of(5, {.batch_size = 8, .drop_last = true}, {}) ==
        start + "5 samples are fewer than the 8 of one step (batches of 8, 1 ranks), and drop_last drops them");
  CHECK(none_of(2, {.batch_size = 2}, {.rank = 1, .world_size = 2, .even_batches = false}) ==
        start + "2 samples in batches of 2 are too few for 2 ranks, and even_batches is off");
  StreamLoader seen(counting_stream(20), {.batch_size = 2});
  (void)pass(seen, 4);
  for (const int64_t batch_size : {2, 4}) {  // 4: re-sharded, which logs a line first
    StreamLoader shorter(counting_stream(5), {.batch_size = batch_size});
    shorter.load_state(seen.state());
    CHECK(lines_of([&] { CHECK(pass(shorter).empty()); }).back() ==
          start + "8 samples were seen or are skipped, and its stream has 5");
  }
  for (const bool known : {true, false}) {
    const auto stream = [&] { return counting_stream(11, known ? std::optional<int64_t>(11) : std::nullopt); };
    StreamLoader one(stream(), {.batch_size = 2});
    (void)pass(one, 2);
    StreamLoader two(stream(), {.batch_size = 2});
    two.shard({.rank = 0, .world_size = 2});
    two.load_state(one.state());
    CHECK(lines_of([&] { (void)pass(two); }) ==
          std::vector<std::string>{"loader: epoch 0 of a stream continues after 4 samples, seen in batches of 2 on 1 "
                                   "ranks; the following samples are sharded again, in batches of 2 to 2 ranks" +
                                   std::string(known ? "; 1 of them are repeated to pad the last batches" : "")});
  }
}

TEST_CASE("invalid stream loaders are refused with the values") {
  CHECK_THROWS_WITH(StreamLoader(counting_stream(1), {.batch_size = 0}), "loader: batch_size is 0, must be at least 1");
  CHECK_THROWS_WITH(StreamLoader(StreamPtr<int64_t>()), "loader: the source is a null pointer");
  CHECK_THROWS_WITH(StreamLoader(counting_stream(1), {.num_workers = 2}),
                    "loader: num_workers is 2, must be 0 or 1: a stream is read by one thread");
  CHECK_THROWS_WITH(StreamLoader(counting_stream(1), {.prefetch_factor = 0}),
                    "loader: prefetch_factor is 0, must be at least 1");
  StreamLoader loader(counting_stream(9, 9), {.batch_size = 3});
  CHECK_THROWS_WITH(loader.shard({.world_size = 2, .split_batches = true}),
                    "shard: split_batches: batch_size is 3, must be a round multiple of the 2 ranks; 4 would be one");
  CHECK_THROWS_WITH(loader.set_epoch(-1), "set_epoch: epoch is -1, must be at least 0");
  CHECK_THROWS_WITH(loader.load_state({.consumed = -1}), "load_state: consumed is -1, must be at least 0");
  CHECK_THROWS_WITH(loader.load_state({.consumed = 10, .samples = 9}),
                    "load_state: consumed is 10, must be at most the samples, 9");
  CHECK_THROWS_WITH(loader.load_state({.samples = -2}), "load_state: samples is -2, must be at least -1");
  CHECK_THROWS_WITH(loader.load_state({.consumed = 3, .samples = 12}),
                    "load_state: the state is of a stream of 12 samples, this one has 9 (-1 means unknown)");
}
