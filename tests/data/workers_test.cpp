// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include "accelerate/base/log.hpp"
#include "accelerate/data/combinators/random_split.hpp"
#include "accelerate/data/dataset.hpp"
#include "accelerate/data/loader.hpp"
#include "tests/data/iteration.hpp"

using namespace accelerate::data;
using namespace std::chrono_literals;
using sources::Batches;
using sources::list;
using sources::Numbers;
using sources::pass;

namespace {

/// Batches are the sample numbers; the test provides a function that runs during each read.
struct Watched final : SourceOf<at::Tensor> {
  Watched(int64_t n, std::function<void(int64_t first)> on_read, bool safe = true)
      : samples(n), reading(std::move(on_read)), is_safe(safe) {}
  [[nodiscard]] int64_t size() const override { return samples; }
  [[nodiscard]] bool thread_safe() const override { return is_safe; }
  [[nodiscard]] at::Tensor read(const at::Tensor& indices) const override {
    reading(indices[0].item<int64_t>());
    return indices.clone();
  }
  int64_t samples;
  std::function<void(int64_t)> reading;
  bool is_safe;
};

LoaderOf<at::Tensor> watched(int64_t n, const LoaderOptions& options, std::function<void(int64_t)> on_read,
                             bool safe = true) {
  return LoaderOf<at::Tensor>(std::make_shared<Watched>(n, std::move(on_read), safe), options);
}

/// A gate for reads: they wait until it is opened.
class Door {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

class Lines {
 public:
  explicit Lines(accelerate::base::LogLevel level) : level_(accelerate::base::log_level()) {
    accelerate::base::set_log_level(level);
    before_ = accelerate::base::set_log_handler([this](auto, std::string_view line) { all.emplace_back(line); });
  }
  ~Lines() {
    accelerate::base::set_log_handler(before_);
    accelerate::base::set_log_level(level_);
  }
  std::vector<std::string> all;

 private:
  accelerate::base::LogLevel level_;
  accelerate::base::LogHandler before_;
};

}  // namespace

TEST_CASE("a source that is not thread-safe is read by one thread at a time, across loaders, passes and sources") {
  std::atomic<int> inside = 0, most = 0, reads = 0;
  const auto alone = [&] {
    const int now = ++inside;
    most = std::max(most.load(), now);
    std::this_thread::sleep_for(1ms);
    --inside;
    ++reads;
  };
  const auto walk_both = [](auto& training, auto& evaluation) {
    int64_t steps = 0;
    for ([[maybe_unused]] auto& batch : training) {
      if (++steps % 3 != 1) continue;
      for ([[maybe_unused]] auto& other : evaluation) continue;
    }
    for ([[maybe_unused]] auto& batch : training) break;  // its worker continues to read
    for ([[maybe_unused]] auto& batch : evaluation) continue;
  };
  const auto source = std::make_shared<Watched>(
      24, [&](int64_t) { alone(); }, /*safe=*/false);
  const auto halves = random_split(source, {12, 12}, 3);
  LoaderOf<at::Tensor> training(halves.at(0), {.batch_size = 2, .num_workers = 1});
  LoaderOf<at::Tensor> evaluation(halves.at(1), {.batch_size = 2});
  walk_both(training, evaluation);

  struct Handle {
    std::function<void()> read;
    [[nodiscard]] size_t size() const { return 12; }
    [[nodiscard]] std::vector<float> get(int64_t) {
      read();
      return {1};
    }
  };
  const auto shared = std::make_shared<Handle>(Handle{alone});
  auto one = from_dataset(shared, {.batch_size = 2, .num_workers = 1});
  auto two = from_dataset(std::ref(*shared), {.batch_size = 2});
  walk_both(one, two);
  CHECK(reads > 60);
  CHECK(most == 1);
}

TEST_CASE("any number of workers returns the batches of no worker, in order, epoch after epoch") {
  auto plain = watched(103, {.batch_size = 4, .shuffle = true, .seed = 3}, [](int64_t) {});
  plain.shard({.rank = 1, .world_size = 2});
  const Batches first = pass(plain);
  const Batches second = pass(plain);
  for (const int64_t workers : {1, 2, 5}) {
    for (const int64_t factor : {1, 3}) {
      auto loader =
          watched(103, {.batch_size = 4, .shuffle = true, .seed = 3, .num_workers = workers, .prefetch_factor = factor},
                  [](int64_t sample) { std::this_thread::sleep_for(std::chrono::microseconds(sample * 3)); });
      loader.shard({.rank = 1, .world_size = 2});
      CHECK(pass(loader) == first);
      CHECK(pass(loader) == second);
      CHECK(loader.epoch() == 2);
    }
  }
}

TEST_CASE("workers prefetch at most prefetch_factor batches each") {
  std::atomic<int> reads = 0;
  auto loader = watched(20, {.num_workers = 2, .prefetch_factor = 2}, [&](int64_t) { ++reads; });
  auto position = loader.begin();
  while (reads < 5) std::this_thread::yield();  // the current batch, and four read ahead
  std::this_thread::sleep_for(20ms);
  CHECK(reads == 5);
  ++position;
  while (reads < 6) std::this_thread::yield();
}

TEST_CASE("the threads are the same in every epoch and know their worker id") {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::set<int64_t> ids;
  auto loader = watched(12, {.num_workers = 2}, [&](int64_t) {
    const auto worker = get_worker_info();
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
    REQUIRE(worker);
    ids.insert(worker->id);
    CHECK(worker->num_workers == 2);
  });
  for (int epoch = 0; epoch < 5; ++epoch) (void)pass(loader);
  CHECK(threads.size() <= 2);
  CHECK(*ids.rbegin() <= 1);
  CHECK_FALSE(threads.contains(std::this_thread::get_id()));
  CHECK_FALSE(get_worker_info());
}

TEST_CASE("a worker's seed depends on the loader's seed, the epoch, the rank and the worker id") {
  std::mutex mutex;
  std::set<uint64_t> bases;
  const auto loader_of = [&](uint64_t seed) {
    return watched(40, {.batch_size = 2, .seed = seed, .num_workers = 2}, [&](int64_t) {
      const auto worker = get_worker_info();
      std::this_thread::sleep_for(1ms);  // so that both read
      const std::lock_guard lock(mutex);
      bases.insert(worker->seed - static_cast<uint64_t>(worker->id));
    });
  };
  const auto base_of_pass = [&](LoaderOf<at::Tensor>& loader) {
    bases.clear();
    (void)pass(loader);
    REQUIRE(bases.size() == 1);
    return *bases.begin();
  };
  auto loader = loader_of(7);
  const auto first = base_of_pass(loader);
  const auto second = base_of_pass(loader);
  CHECK(first == base_seed_of(7, 0, 0));
  CHECK(second == base_seed_of(7, 1, 0));
  CHECK(std::max(first, second) < uint64_t{1} << 62);
  auto resumed = loader_of(7);
  resumed.load_state({.epoch = 1, .consumed = 20, .samples = 40, .batch_size = 2});
  CHECK(base_of_pass(resumed) == second);
  auto other = loader_of(8);
  auto of_rank_1 = loader_of(7);
  of_rank_1.shard({.rank = 1, .world_size = 2});
  CHECK(std::set<uint64_t>{first, second, base_of_pass(other), base_of_pass(of_rank_1)}.size() == 4);
}

TEST_CASE("a source's exception keeps its type and is thrown at its batch; a log line names the samples") {
  struct Torn : std::domain_error {
    using std::domain_error::domain_error;
  };
  for (const int64_t workers : {0, 2}) {
    const Lines lines(accelerate::base::LogLevel::error);
    auto loader = watched(12, {.batch_size = 2, .num_workers = workers}, [](int64_t sample) {
      if (sample == 4) throw Torn("page 4 is torn\nand more");
    });
    Batches seen;
    auto position = loader.begin();
    const auto walk = [&] {
      for (; position != loader.end(); ++position) seen.push_back(list(*position));
    };
    CHECK_THROWS_WITH_AS(walk(), "page 4 is torn\nand more", Torn);
    CHECK(seen == Batches{{0, 1}, {2, 3}});
    CHECK(lines.all == std::vector<std::string>{"loader: batch 2 (samples 4, 5) could not be read: page 4 is torn"});
    ++position;
    walk();
    CHECK(seen == Batches{{0, 1}, {2, 3}, {6, 7}, {8, 9}, {10, 11}});
  }
}

TEST_CASE("out of memory on a worker is thrown at its batch, and no batch is lost or replaced") {
  std::atomic<bool> thrown = false;
  auto loader = watched(14, {.batch_size = 2, .num_workers = 1}, [&](int64_t sample) {
    if (sample == 4 && !thrown.exchange(true)) TORCH_CHECK_WITH(OutOfMemoryError, false, "it is short");
  });
  Batches seen;
  auto position = loader.begin();
  const auto walk = [&] {
    for (; position != loader.end(); ++position) {
      seen.push_back(list(*position));
      const auto until = std::chrono::steady_clock::now() + 20ms;
      while (std::chrono::steady_clock::now() < until) (void)position.read_ahead();  // as prepare() does
    }
  };
  const Lines lines(accelerate::base::LogLevel::error);
  CHECK_THROWS_AS(walk(), c10::OutOfMemoryError);
  CHECK(seen == Batches{{0, 1}, {2, 3}});
  CHECK(lines.all == std::vector<std::string>{"loader: batch 2 (samples 4, 5) could not be read: it is short"});
  ++position;
  walk();
  CHECK(seen == Batches{{0, 1}, {2, 3}, {6, 7}, {8, 9}, {10, 11}, {12, 13}});
}

TEST_CASE("without workers a read is retried after the current batch is released, if memory was short") {
  bool thrown = false;
  auto loader = watched(6, {.batch_size = 2}, [&](int64_t sample) {
    if (sample == 2 && !std::exchange(thrown, true)) TORCH_CHECK_WITH(OutOfMemoryError, false, "it is short");
  });
  auto position = loader.begin();
  CHECK(position.read_ahead() == nullptr);
  CHECK(list(*++position) == Numbers{2, 3});
  CHECK(list(*++position) == Numbers{4, 5});
}

TEST_CASE("a loop that breaks early does not affect later loops, and loops over one loader nest") {
  auto loader = watched(40, {.batch_size = 2, .num_workers = 2}, [](int64_t) {});
  for (auto& batch : loader) {
    if (list(batch) == Numbers{4, 5}) break;
  }
  int64_t pairs = 0;
  for (auto& outer : loader) {
    for ([[maybe_unused]] auto& inner : loader) ++pairs;
    if (list(outer) == Numbers{2, 3}) break;
  }
  CHECK(pairs == 40);
  CHECK(pass(loader).size() == 20);
  auto unread = loader.begin();  // destroyed before its workers have read
}

TEST_CASE("a pass with workers can outlive its loader") {
  auto loader = std::make_unique<LoaderOf<at::Tensor>>(
      watched(6, {.batch_size = 2, .num_workers = 2}, [](int64_t) { std::this_thread::sleep_for(1ms); }));
  auto position = loader->begin();
  loader.reset();
  CHECK(list(*++position) == Numbers{2, 3});
  CHECK(list(*++position) == Numbers{4, 5});
}

TEST_CASE("a source that is not thread-safe is read by one worker at a time") {
  std::atomic<int> at_once = 0;
  auto loader = watched(
      30, {.num_workers = 4},
      [&](int64_t) {
        CHECK(++at_once == 1);
        std::this_thread::yield();
        --at_once;
      },
      /*safe=*/false);
  CHECK(pass(loader).size() == 30);
}

TEST_CASE("a read that hangs is named after the timeout, and the next pass uses other workers") {
  // The thread of a hanging read may end after the test.
  const auto door = std::make_shared<Door>();
  const auto hangs = std::make_shared<std::atomic<bool>>(true);
  auto loader = watched(8, {.batch_size = 2, .num_workers = 2, .timeout = 300ms}, [=](int64_t sample) {
    if (sample == 2 && *hangs) door->pass();
  });
  auto position = loader.begin();
  CHECK_THROWS_WITH_AS(++position,
                       doctest::Contains("loader: batch 1 (samples 2, 3) is not ready after 0.3 s (timeout); worker "),
                       accelerate::Error);
  CHECK_THROWS_WITH_AS(++position, doctest::Contains(" has been reading it for 0."), accelerate::Error);
  *hangs = false;
  CHECK(pass(loader).size() == 4);
  door->open();
}

TEST_CASE("a timeout beyond the clock's range is accepted") {
  auto loader = watched(8, {.batch_size = 2, .num_workers = 1, .timeout = std::chrono::milliseconds::max()},
                        [](int64_t) { std::this_thread::sleep_for(1ms); });
  CHECK(pass(loader).size() == 4);
}

TEST_CASE("the hanging sample of a long batch is named") {
  struct Hanging {
    [[nodiscard]] size_t size() const { return 32; }
    [[nodiscard]] at::Tensor get(int64_t i) const {
      if (i == 27) door->pass();
      return torch::tensor(i);
    }
    std::shared_ptr<Door> door;  // the thread of a hanging read may end after the test
  };
  const auto door = std::make_shared<Door>();
  auto loader = from_dataset(Hanging{door}, {.batch_size = 16, .num_workers = 1, .timeout = 300ms});
  auto position = loader.begin();
  CHECK_THROWS_WITH_AS(++position, doctest::Contains(" s, now sample 27. Look at these samples"), accelerate::Error);
  door->open();
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("more workers than threads are refused with both numbers, and the started ones end") {
  struct LittleMemory {
    LittleMemory() {
      REQUIRE(getrlimit(RLIMIT_AS, &before_) == 0);
      rlim_t pages = 0;
      std::ifstream("/proc/self/statm") >> pages;
      const rlimit little{pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (rlim_t{64} << 20), before_.rlim_max};
      REQUIRE(setrlimit(RLIMIT_AS, &little) == 0);
    }
    ~LittleMemory() { setrlimit(RLIMIT_AS, &before_); }
    rlimit before_{};
  };
  const auto threads = [] { return std::ranges::distance(std::filesystem::directory_iterator("/proc/self/task")); };
  const auto before = threads();
  std::string text;
  {
    const LittleMemory little;
    try {
      WorkerPool pool(1000);
    } catch (const accelerate::Error& error) {
      text = error.what();
    }
  }
  CHECK(text.starts_with("loader: num_workers is 1000, but the system provides "));
  CHECK(
      text.ends_with(" threads: Resource temporarily unavailable; use fewer workers, or raise the limits of "
                     "processes and memory (ulimit -u, ulimit -v)"));
  // The kernel removes a thread shortly after it was joined.
  const auto until = std::chrono::steady_clock::now() + 5s;
  while (threads() > before && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(1ms);
  CHECK(threads() <= before);
}
#endif

TEST_CASE("the timeout error reports workers that are busy with an abandoned pass") {
  ReadQueue queue(10, 2, [](int64_t, size_t) {});
  CHECK_FALSE(queue.wait(0, 1ms));
  CHECK_THROWS_WITH(std::rethrow_exception(slow_read(0, torch::arange(12), queue.reader_of(0), 2000ms)),
                    "loader: batch 0 (samples 0, 1, 2, 3, 4, 5, 6, 7 ... (12 samples)) was not begun within 2 s "
                    "(timeout): the workers still read batches of a pass that was left early");
}

TEST_CASE("the loading report names the bottleneck and the remedy") {
  auto slow = watched(4, {}, [](int64_t) { std::this_thread::sleep_for(5ms); });
  CHECK(slow.report().text() == "no batch was taken yet");
  (void)pass(slow);
  CHECK(slow.report().samples == 4);
  CHECK(slow.report().batches == 4);
  CHECK(slow.report().data_wait_seconds >= 0.02);
  CHECK(slow.report().seconds >= slow.report().data_wait_seconds);
  CHECK(slow.report().data_is_bottleneck());
  CHECK(slow.report().samples_per_second() > 0);
  auto ahead = watched(4, {.num_workers = 1}, [](int64_t) {});
  for (auto position = ahead.begin(); position != ahead.end(); ++position) std::this_thread::sleep_for(30ms);
  CHECK(ahead.report().seconds >= 0.12);
  CHECK(ahead.report().prefetched_seconds >= 0.03);

  CHECK(ahead.report().num_workers == 1);
  auto unsafe = watched(
      4, {.num_workers = 3, .prefetch_factor = INT64_MAX}, [](int64_t) {}, /*safe=*/false);
  CHECK(pass(unsafe) == Batches{{0}, {1}, {2}, {3}});
  CHECK(unsafe.report().num_workers == 1);  // number of workers that read
  CHECK(unsafe.report().single_reader);

  LoadingReport report{
      .batches = 10, .samples = 640, .seconds = 2, .data_wait_seconds = 0.5, .prefetched_seconds = 0.25};
  const std::string numbers =
      "640 samples in 10 batches, 320 samples/s; the step waited 25.0 % of 2.000 s for data, batches waited 0.250 s "
      "for "
      "the step: ";
  CHECK(report.text() == numbers + "the data are the bottleneck; num_workers = 1 reads beside the step");
  report.single_reader = true;
  CHECK(report.text() == numbers +
                             "the data are the bottleneck; num_workers = 1 reads beside the step, unless the "
                             "data are gathered on a device");
  report.single_reader = false;
  report.num_workers = 2;
  CHECK(report.text() == numbers + "the data are the bottleneck; more than 2 workers, or a cheaper read, would help");
  report.num_workers = -1;  // a foreign loader
  CHECK(report.text() == numbers + "the data are the bottleneck; a cheaper read would help");
  report.num_workers = 2;
  report.single_reader = true;
  CHECK(report.text() ==
        numbers + "the data are the bottleneck, and are read by one thread; a cheaper read would help");
  report.samples = 0;  // its batches have no rows
  CHECK(report.text().starts_with("10 batches; the step waited 25.0 % of 2.000 s for data, "));
  report.samples = 640;
  report.data_wait_seconds = 0.02;
  CHECK(
      report.text() ==
      "640 samples in 10 batches, 320 samples/s; the step waited 1.0 % of 2.000 s for data, batches waited 0.250 s for "
      "the step: the step is the bottleneck, the data keep up; a faster step (a larger batch, mixed precision) would "
      "help");
}

TEST_CASE("the report's total time includes a wait for a later batch") {
  LoadingTimer clock({});
  clock.start_request();
  clock.arrived(1);
  std::this_thread::sleep_for(20ms);
  clock.waited(20ms);
  CHECK(clock.report()->seconds >= clock.report()->data_wait_seconds);
}

TEST_CASE("the loading report is logged after each pass on request") {
  const Lines lines(accelerate::base::LogLevel::info);
  auto loader = watched(4, {.batch_size = 2, .log_report = true}, [](int64_t) {});
  (void)pass(loader);
  REQUIRE(lines.all.size() == 1);
  CHECK(lines.all[0].starts_with("loader: epoch 0: 4 samples in 2 batches, "));
}

TEST_CASE("invalid worker options are refused with the values") {
  const auto refused = [](const LoaderOptions& options) {
    try {
      (void)watched(4, options, [](int64_t) {});
    } catch (const accelerate::Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(refused({.num_workers = -1}) == "loader: num_workers is -1, must be at least 0");
  CHECK(refused({.num_workers = 1, .prefetch_factor = 0}) == "loader: prefetch_factor is 0, must be at least 1");
  CHECK(refused({.timeout = -5ms}) == "loader: timeout is -5 ms, must be at least 0");
}
