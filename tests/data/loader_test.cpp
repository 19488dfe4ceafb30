// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include "accelerate/base/log.hpp"
#include "accelerate/data/loader.hpp"
#include "accelerate/data/memory.hpp"
#include "tests/data/support.hpp"

using namespace accelerate::data;
using Numbers = std::vector<int64_t>;
using Batches = std::vector<Numbers>;

namespace {

/// Sample i is the number i, its target is 10 * i.
Loader counted_loader(int64_t n, const LoaderOptions& options) {
  return from_tensors(torch::arange(n), torch::arange(n) * 10, options);
}

Numbers longs(const at::Tensor& tensor) {
  return {tensor.data_ptr<int64_t>(), tensor.data_ptr<int64_t>() + tensor.numel()};
}

Batches pass(Loader& loader) {
  Batches all;
  for (auto& [data, target] : loader) {
    CHECK(target.equal(data * 10));
    all.push_back(longs(data));
  }
  return all;
}

Batches pass(Loader& loader, int64_t rank, int64_t world, bool even = true) {
  loader.shard({.rank = rank, .world_size = world, .even_batches = even});
  loader.set_epoch(0);
  const auto all = pass(loader);
  CHECK(loader.size() == static_cast<int64_t>(all.size()));
  return all;
}

}  // namespace

TEST_CASE("a single rank reads every sample once, with a short last batch") {
  auto loader = counted_loader(5, {.batch_size = 2});
  CHECK(pass(loader) == Batches{{0, 1}, {2, 3}, {4}});
  CHECK(loader.size() == 3);
  auto dropping = counted_loader(5, {.batch_size = 2, .drop_last = true});
  CHECK(pass(dropping) == Batches{{0, 1}, {2, 3}});
  CHECK(dropping.size() == 2);
}

TEST_CASE("ranks read their shards, padded from the front") {
  auto loader = counted_loader(10, {.batch_size = 2});
  CHECK(pass(loader, 0, 2) == Batches{{0, 1}, {4, 5}, {8, 9}});
  CHECK(pass(loader, 1, 2) == Batches{{2, 3}, {6, 7}, {0, 1}});
  CHECK(pass(loader, 1, 2, false) == Batches{{2, 3}, {6, 7}});
  auto thirteen = counted_loader(13, {.batch_size = 4});
  CHECK(pass(thirteen, 1, 3) == Batches{{4, 5, 6, 7}, {3, 4, 5, 6}});
  CHECK(thirteen.total_batch_size() == 12);
  CHECK(thirteen.sample_count() == 13);
  auto one = counted_loader(1, {.batch_size = 4});
  CHECK(pass(one, 1, 2) == Batches{{0, 0, 0, 0}});
}

TEST_CASE("a seeded shuffle has Accelerate's batches, epoch by epoch") {
  auto loader = counted_loader(8, {.batch_size = 2, .shuffle = true, .seed = 42});
  CHECK(pass(loader) == Batches{{6, 3}, {0, 7}, {2, 1}, {4, 5}});
  CHECK(pass(loader) == Batches{{4, 5}, {7, 1}, {3, 2}, {6, 0}});
  auto sixteen = counted_loader(16, {.batch_size = 2, .shuffle = true, .seed = 42});
  CHECK(pass(sixteen, 0, 2) == Batches{{6, 3}, {10, 15}, {14, 9}, {4, 13}});
  CHECK(pass(sixteen, 1, 2) == Batches{{0, 7}, {2, 12}, {8, 5}, {11, 1}});
}

TEST_CASE("set_epoch chooses the next pass, and interrupted passes count as passes") {
  auto loader = counted_loader(8, {.batch_size = 2, .shuffle = true, .seed = 42});
  loader.set_epoch(1);
  CHECK(pass(loader) == Batches{{4, 5}, {7, 1}, {3, 2}, {6, 0}});
  CHECK(loader.epoch() == 2);
  for (auto& batch : loader) {
    CHECK(longs(batch.data) == Numbers{4, 7});
    CHECK(loader.epoch() == 2);
    break;
  }
  loader.set_epoch(0);
  for (auto& batch : loader) {
    CHECK(longs(batch.data) == Numbers{6, 3});
    break;
  }
  CHECK(loader.epoch() == 0);
  CHECK(pass(loader) == Batches{{4, 5}, {7, 1}, {3, 2}, {6, 0}});
  CHECK(loader.epoch() == 2);
}

TEST_CASE("an unset seed is drawn from the CPU generator by the first pass") {
  torch::manual_seed(42);
  auto loader = counted_loader(8, {.batch_size = 8, .shuffle = true});
  CHECK(pass(loader) == Batches{{6, 3, 0, 7, 2, 1, 4, 5}});
  torch::manual_seed(1);
  CHECK(loader.seed() == 42);
  CHECK(pass(loader) == Batches{{4, 5, 7, 1, 3, 2, 6, 0}});
  loader.set_seed(44);
  loader.set_epoch(0);
  CHECK(pass(loader) == Batches{{4, 7, 3, 2, 1, 5, 6, 0}});
}

TEST_CASE("last is true for the last batch, in every pass") {
  auto loader = counted_loader(16, {.batch_size = 4});
  for (int round = 0; round < 2; ++round) {
    std::vector<bool> flags;
    for (auto position = loader.begin(); position != loader.end(); ++position) {
      CHECK(position.info().index == static_cast<int64_t>(flags.size()));
      CHECK(position.info().remainder == 0);
      flags.push_back(position.info().last);
    }
    CHECK(flags == std::vector<bool>{false, false, false, true});
  }
}

TEST_CASE("a loop that breaks early does not affect later loops") {
  auto loader = counted_loader(16, {.batch_size = 4});
  for ([[maybe_unused]] auto& batch : loader) break;
  CHECK(pass(loader).size() == 4);
}

TEST_CASE("an exception of a source reaches the loop, and the loader stays usable") {
  struct Flaky final : accelerate::data::Source {
    mutable int reads = 0;
    [[nodiscard]] int64_t size() const override { return 3; }
    [[nodiscard]] Batch read(const at::Tensor& indices) const override {
      if (++reads == 1 || reads == 3) throw std::runtime_error("disk");
      return {indices, indices * 10};
    }
  };
  Loader loader(std::make_shared<Flaky>(), {});
  CHECK_THROWS_WITH((void)loader.begin(), "disk");
  auto it = loader.begin();
  CHECK_THROWS_WITH(++it, "disk");
  it = loader.begin();
  CHECK(it.info().index == 0);
  CHECK(pass(loader).size() == 3);
}

TEST_CASE("a source with custom batches is iterated and sharded like any other") {
  struct Sample {
    at::Tensor image;
    std::vector<std::string> names;
  };
  struct Files final : accelerate::data::SourceOf<Sample> {
    [[nodiscard]] int64_t size() const override { return 5; }
    [[nodiscard]] Sample read(const at::Tensor& indices) const override {
      Sample sample{indices * 2, {}};
      for (const int64_t index : longs(indices.contiguous())) sample.names.push_back("f" + std::to_string(index));
      return sample;
    }
  };
  accelerate::data::LoaderOf loader(std::make_shared<Files>(), {.batch_size = 2});
  loader.shard({.rank = 1, .world_size = 2});
  std::vector<std::vector<std::string>> names;
  for (auto& [image, name] : loader) {
    CHECK(image.size(0) == 2);
    names.push_back(name);
  }
  CHECK(names == std::vector<std::vector<std::string>>{{"f2", "f3"}, {"f1", "f2"}});
  accelerate::data::LoaderOf one_by_one(std::make_shared<const Files>());
  CHECK(one_by_one.size() == 5);
}

TEST_CASE("skipped batches are not read, with workers too") {
  for (const int64_t workers : {0, 2}) {
    const auto source = std::make_shared<sources::CountedReads>(10);
    Loader loader(source, {.batch_size = 2, .num_workers = workers});
    auto later = loader.skip_first_batches(3);
    CHECK(pass(later) == Batches{{6, 7}, {8, 9}});
    CHECK(source->reads == Numbers{0, 0, 0, 0, 0, 0, 1, 1, 1, 1});
    CHECK(loader.size() == 5);
    CHECK(pass(loader).size() == 5);
  }
}

TEST_CASE("a pass that skips more batches than exist still counts as a pass") {
  for (const int64_t skipped : {4, 5, 100}) {
    CAPTURE(skipped);
    auto loader = counted_loader(8, {.batch_size = 2}).skip_first_batches(skipped);
    CHECK(pass(loader).empty());
    CHECK(loader.epoch() == 1);
    CHECK(loader.state().consumed == 0);
  }
}

TEST_CASE("the outer loop is active again after two inner iterators are destroyed") {
  auto loader = counted_loader(10, {.batch_size = 2});
  auto loop = loader.begin();
  ++loop;
  for (const bool first_goes_first : {false, true}) {
    {
      auto one = std::make_optional(loader.begin()), other = std::make_optional(loader.begin());
      (first_goes_first ? one : other).reset();
    }
    ++loop;
    const auto state = loader.state();
    CHECK(state.epoch == 0);
    CHECK(state.consumed == (first_goes_first ? 8 : 6));
    { const auto one = loader.begin(), other = loader.begin(); }
    CHECK(loader.state() == state);
  }
}

TEST_CASE("an iterator stays at its end") {
  auto loader = counted_loader(2, {.batch_size = 2});
  auto it = loader.begin();
  ++it;
  ++it;
  CHECK(it == loader.end());
  CHECK(loader.epoch() == 1);
}

TEST_CASE("with split_batches a rank reads its part of every batch, and batch_size is per rank") {
  auto loader = counted_loader(13, {.batch_size = 4});
  const auto of = [&](int64_t rank, bool even) {
    loader.shard({.rank = rank, .world_size = 2, .even_batches = even, .split_batches = true});
    loader.set_epoch(0);
    return pass(loader);
  };
  CHECK(of(0, true) == Batches{{0, 1}, {4, 5}, {8, 9}, {12, 0}});
  CHECK(of(1, true) == Batches{{2, 3}, {6, 7}, {10, 11}, {1, 2}});
  CHECK(loader.batch_size() == 2);
  CHECK(loader.total_batch_size() == 4);
  CHECK(loader.size() == 4);
  CHECK(loader.begin().info().remainder == 1);
  CHECK(of(1, false) == Batches{{2, 3}, {6, 7}, {10, 11}});
  CHECK(loader.size() == 3);
}

TEST_CASE("the remainder is known from the first batch") {
  const auto remainder = [](int64_t n, int64_t batch, int64_t world, bool drop, bool even = true) {
    auto loader = counted_loader(n, {.batch_size = batch, .drop_last = drop});
    loader.shard({.world_size = world, .even_batches = even});
    return loader.begin().info().remainder;
  };
  CHECK(remainder(10, 2, 2, false) == 2);
  CHECK(remainder(13, 4, 2, false) == 5);
  CHECK(remainder(12, 2, 2, false) == 0);
  CHECK(remainder(13, 4, 3, false) == 1);
  CHECK(remainder(1, 4, 2, false) == 1);
  CHECK(remainder(13, 2, 2, true) == -1);
  CHECK(remainder(13, 4, 2, false, false) == 0);
  CHECK(remainder(7, 4, 1, false) == 3);
}

TEST_CASE("a sampler selects the samples of an epoch and determines the counts") {
  auto loader =
      counted_loader(10, {.batch_size = 2, .sampler = subset_sampler(torch::tensor({9, 1, 4, 2, 7, 0, 3}), false)});
  CHECK(pass(loader, 0, 2) == Batches{{9, 1}, {7, 0}});
  CHECK(pass(loader, 1, 2) == Batches{{4, 2}, {3, 9}});
  CHECK(loader.sample_count() == 10);
  CHECK(loader.begin().info().remainder == 3);
  CHECK_FALSE(loader.shuffles());
  auto twice = counted_loader(3, {.batch_size = 4, .seed = 43, .sampler = random_sampler(3, 7)});
  CHECK(pass(twice) == Batches{{1, 0, 2, 2}, {0, 1, 1}});
  CHECK(twice.shuffles());
}

TEST_CASE("a user's sampler receives seed and epoch, and its indices are checked") {
  std::vector<int64_t> calls;
  const auto order = [&](uint64_t seed, int64_t epoch) {
    calls.push_back(static_cast<int64_t>(seed) * 100 + epoch);
    return epoch == 3 ? torch::tensor({0, 4}) : epoch == 4 ? torch::tensor({0}) : torch::tensor({1, 0});
  };
  auto loader = counted_loader(4, {.seed = 7, .sampler = make_sampler(2, order)});
  CHECK(pass(loader) == Batches{{1}, {0}});
  CHECK(pass(loader) == Batches{{1}, {0}});
  CHECK(calls == std::vector<int64_t>{700, 701});
  loader.set_epoch(3);
  CHECK_THROWS_WITH(loader.begin(), "loader: the sampler requests sample 4 in epoch 3, there are 4 samples");
  CHECK(loader.epoch() == 3);  // a pass that could not begin does not count
  loader.set_epoch(4);
  CHECK_THROWS_WITH(loader.begin(),
                    "loader: the sampler returns CPULongType[1] in epoch 4, must be [2] int64 on the CPU");
  loader.set_epoch(5);
  CHECK(pass(loader) == Batches{{1}, {0}});
}

TEST_CASE("batches of a batch sampler are padded by samples if all sizes are equal, else sharded whole") {
  const auto of = [](IndexBatches batches, int64_t rank, bool even = true, bool split = false) {
    auto loader = counted_loader(14, {.batch_sampler = [=](uint64_t, int64_t) { return batches; }});
    loader.shard({.rank = rank, .world_size = 2, .even_batches = even, .split_batches = split});
    const auto all = pass(loader);
    CHECK(loader.size() == static_cast<int64_t>(all.size()));
    return all;
  };
  const IndexBatches equal{{0, 1, 2}, {3, 4, 5}, {6, 7}};
  CHECK(of(equal, 0) == Batches{{0, 1, 2}, {6, 7, 0}});
  CHECK(of(equal, 1) == Batches{{3, 4, 5}, {1, 2, 3}});
  CHECK(of(equal, 1, false) == Batches{{3, 4, 5}});
  const IndexBatches varying{{0, 1, 2}, {3, 4}, {5, 6, 7, 8}, {9, 10, 11}, {12, 13}};
  CHECK(of(varying, 0) == Batches{{0, 1, 2}, {5, 6, 7, 8}, {12, 13}});
  CHECK(of(varying, 1) == Batches{{3, 4}, {9, 10, 11}, {0, 1, 2}});
  CHECK(of(varying, 1, false) == Batches{{3, 4}, {9, 10, 11}});
  CHECK(of({{0, 1, 2}}, 1, false).empty());
  CHECK(of({{1}, {2, 3}}, 1, false) == Batches{{2, 3}});
  CHECK(of({}, 0).empty());
  CHECK(of({{0, 1}, {2, 3}, {4, 5}}, 1, true, true) == Batches{{1}, {3}, {5}});
  CHECK_THROWS_WITH(of(varying, 0, true, true),
                    "loader: split_batches: the batch sampler's batch 1 has 2 samples, the first has 3; all but a "
                    "shorter last one must be equal");
  CHECK_THROWS_WITH(of(equal, 0, true, true),
                    "shard: split_batches: batch_size is 3, must be a round multiple of the 2 ranks; 4 would be one");
  CHECK_THROWS_WITH(of({{0, 14}}, 0), "loader: the batch sampler requests sample 14 in epoch 0, there are 14 samples");
}

TEST_CASE("the batches of a batch sampler determine the number of samples per step") {
  Loader loader(memory_source(torch::arange(7), torch::arange(7) * 10), {.batch_sampler = [](uint64_t, int64_t) {
                  return IndexBatches{{0, 1, 2}, {3, 4, 5}};
                }});
  CHECK(loader.batch_size() == 3);
  CHECK(loader.total_batch_size() == 3);
  loader.shard({.rank = 1, .world_size = 2});
  CHECK(loader.total_batch_size() == 6);
  CHECK(loader.sample_count() == 7);
}

TEST_CASE("with whole batches the remainder counts valid rows, and set_epoch reaches the batch sampler") {
  std::vector<int64_t> epochs;
  auto loader = counted_loader(14, {.seed = 1, .batch_sampler = [&](uint64_t, int64_t epoch) {
                                      epochs.push_back(epoch);
                                      return IndexBatches{{0, 1, 2}, {3, 4}, {5, 6, 7, 8}};
                                    }});
  loader.shard({.rank = 1, .world_size = 2});
  loader.set_epoch(4);
  CHECK(loader.begin().info().remainder == 4);
  CHECK(epochs == std::vector<int64_t>{4});
  loader.shard({.rank = 1, .world_size = 2, .even_batches = false});
  CHECK(loader.begin().info().remainder == 0);
}

TEST_CASE("options that determine the order of samples exclude each other") {
  const auto refused = [](const LoaderOptions& options) {
    try {
      (void)counted_loader(4, options);
    } catch (const accelerate::Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto text = [](const std::string& one, const std::string& other) {
    return "loader: " + one + " and " + other + " are both given, and each determines the order of samples; remove one";
  };
  const auto sampler = random_sampler(4);
  const BatchSampler batches = [](uint64_t, int64_t) { return IndexBatches{}; };
  CHECK(refused({.shuffle = true, .sampler = sampler}) == text("shuffle", "a sampler"));
  CHECK(refused({.batch_size = 2, .batch_sampler = batches}) == text("batch_size", "a batch_sampler"));
  CHECK(refused({.shuffle = true, .batch_sampler = batches}) == text("shuffle", "a batch_sampler"));
  CHECK(refused({.sampler = sampler, .batch_sampler = batches}) == text("a sampler", "a batch_sampler"));
  CHECK(refused({.drop_last = true, .batch_sampler = batches}) == text("drop_last", "a batch_sampler"));
}

TEST_CASE("an empty source has no batches") {
  auto loader = counted_loader(0, {.batch_size = 2, .shuffle = true});
  CHECK(pass(loader).empty());
  CHECK(loader.size() == 0);
}

TEST_CASE("a pass without batches logs the reason with the numbers, once") {
  const auto reason_of = [](const auto& walk) {
    accelerate::base::reset_log_once();
    std::vector<std::string> lines;
    const auto before =
        accelerate::base::set_log_handler([&](auto, std::string_view line) { lines.emplace_back(line); });
    walk();
    walk();
    accelerate::base::set_log_handler(before);
    const std::string_view start = "loader: this rank has no batch in a whole pass: ";
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].starts_with(start));
    return lines[0].substr(start.size());
  };
  const auto none_of = [&](int64_t n, const LoaderOptions& options, const ShardSpec& shard_spec = {}) {
    return reason_of([&] {
      auto loader = counted_loader(n, options);
      loader.shard(shard_spec);
      CHECK(pass(loader).empty());
    });
  };
  CHECK(none_of(0, {.batch_size = 2}) == "its data are empty, 0 samples");
  CHECK(none_of(3, {.sampler = subset_sampler(torch::empty({0}, torch::kLong))}) ==
        "its order is a random subset and visits 0 of 3 samples");
  CHECK(none_of(3, {.batch_size = 8, .drop_last = true}) ==
        "3 samples are fewer than the 8 of one step (batches of 8, 1 ranks), and drop_last drops them");
  CHECK(none_of(3, {.batch_size = 3}, {.rank = 1, .world_size = 2, .even_batches = false}) ==
        "3 samples in batches of 3 are too few for 2 ranks, and even_batches is off");
  const auto ten = counted_loader(10, {.batch_size = 4});
  CHECK(reason_of([&] {
          auto later = ten.skip_first_batches(5);
          CHECK(pass(later).empty());
        }) == "5 batches were seen or are skipped, and there are 3");
  CHECK(reason_of([&] {
          auto loader = counted_loader(10, {.batch_size = 4});
          loader.load_state({.consumed = 10, .samples = 10, .batch_size = 2});
          CHECK(pass(loader).empty());
        }) == "all 10 samples of the epoch were seen before");
  CHECK(reason_of([&] {
          auto loader = counted_loader(10, {.batch_size = 4, .drop_last = true});
          loader.load_state({.consumed = 8, .samples = 10, .batch_size = 2});
          CHECK(pass(loader).empty());
        }) == "2 samples are fewer than the 4 of one step (batches of 4, 1 ranks), and drop_last drops them");
}

TEST_CASE("loops nest, over two loaders and over one") {
  auto outer = counted_loader(4, {.batch_size = 2});
  auto inner = counted_loader(3, {.batch_size = 1});
  Numbers seen;
  for (auto place = outer.begin(); place != outer.end(); ++place) {
    for (auto& [data, target] : inner) seen.push_back(data.item<int64_t>());
    CHECK(place.info().last == (place->data[0].item<int64_t>() == 2));
  }
  CHECK(seen == Numbers{0, 1, 2, 0, 1, 2});

  int64_t pairs = 0;
  for (auto place = outer.begin(); place != outer.end(); ++place) {
    const auto before = place.info();
    for ([[maybe_unused]] auto& b : outer) ++pairs;
    CHECK(place.info() == before);
  }
  CHECK(pairs == 4);
}

TEST_CASE("a pass can outlive its loader") {
  auto loader = std::make_unique<Loader>(counted_loader(4, {.batch_size = 2}));
  auto it = loader->begin();
  loader.reset();
  CHECK(longs(it->data) == Numbers{0, 1});
  CHECK(longs((++it)->data) == Numbers{2, 3});
  CHECK(it.info().last);
  ++it;
  CHECK(it == std::default_sentinel);
}

TEST_CASE("the user may keep or change a batch without an effect on the source or the next batch") {
  const auto source = torch::arange(6);
  auto loader = from_tensors(source, {}, {.batch_size = 2});
  std::vector<at::Tensor> kept;
  for (auto& [data, target] : loader) {
    CHECK(!target.defined());
    kept.push_back(data);
    data.add_(100);
  }
  CHECK(source.equal(torch::arange(6)));
  CHECK(torch::cat(kept).equal(torch::arange(6) + 100));
}

TEST_CASE("copies are handles of one loader") {
  auto loader = counted_loader(4, {.batch_size = 2});
  Loader copy = loader;
  copy.shard({.rank = 1, .world_size = 2});
  CHECK(pass(loader) == Batches{{2, 3}});
  CHECK(copy == loader);
  CHECK(copy.shard_spec().rank == 1);
  CHECK(copy.shard_spec().world_size == 2);
  CHECK(copy.shard_spec().even_batches);
  CHECK(copy.options().batch_size == 2);
  CHECK(counted_loader(4, {}) != counted_loader(4, {}));
}

TEST_CASE("data of any dtype and shape is gathered by the batch") {
  const auto images = torch::rand({5, 2, 3}, torch::kBFloat16);
  auto loader = from_tensors(images, torch::tensor({true, false, true, true, false}), {.batch_size = 3});
  auto it = loader.begin();
  ++it;
  CHECK(it->data.equal(images.slice(0, 3)));
  CHECK(it->target.equal(torch::tensor({true, false})));
}

TEST_CASE("invalid loaders are refused with both values in the message") {
  CHECK_THROWS_WITH(counted_loader(4, {.batch_size = 0}), "loader: batch_size is 0, must be at least 1");
  CHECK_THROWS_WITH(Loader(std::shared_ptr<const accelerate::data::Source>()), "loader: the source is a null pointer");
  CHECK_THROWS_WITH(counted_loader(4, {}).set_epoch(-1), "set_epoch: epoch is -1, must be at least 0");
  const accelerate::RankContext here{.rank = 2, .world_size = 2, .host = "a"};
  auto three = counted_loader(4, {.batch_size = 3});
  CHECK_THROWS_WITH(three.shard({.rank = 2, .world_size = 2}, here),
                    "[rank 2 of 2, a] shard: rank is 2, must be 0 to 1 with world_size 2");
  CHECK_THROWS_WITH(
      three.shard({.world_size = 2, .split_batches = true}, here),
      "[rank 2 of 2, a] shard: split_batches: batch_size is 3, must be a round multiple of the 2 ranks; 4 "
      "would be one");
  CHECK(three.size() == 2);  // unchanged
  CHECK_THROWS_WITH((void)memory_source(torch::zeros({3, 2}), torch::zeros(4)),
                    "memory_source: data has 3 samples, target 4; both must be [N, ...]");
  CHECK_THROWS_WITH((void)memory_source(torch::tensor(1)),
                    "memory_source: data has no first dimension, must be [N, ...]");
  CHECK_THROWS_WITH((void)memory_source(at::Tensor()), "memory_source: data has no first dimension, must be [N, ...]");
  CHECK_THROWS_WITH((void)memory_source(torch::zeros({3}, torch::kMeta)),
                    "memory_source: data is on meta, must be on the CPU; batches are moved by prepare");
}

namespace {

/// Returns [seed, epoch, sample] for every sample.
struct PassNumbers final : accelerate::data::SourceOf<at::Tensor> {
  explicit PassNumbers(bool is_seeded) : seeded_(is_seeded) {}
  [[nodiscard]] int64_t size() const override { return 3; }
  [[nodiscard]] at::Tensor read(const at::Tensor& indices) const override { return read_in_pass(indices, {}); }
  [[nodiscard]] at::Tensor read_in_pass(const at::Tensor& indices, const ReadContext& context) const override {
    return torch::stack({torch::full_like(indices, static_cast<int64_t>(context.seed)),
                         torch::full_like(indices, context.epoch), indices},
                        1);
  }
  [[nodiscard]] bool seeded() const override { return seeded_; }

 private:
  bool seeded_;
};

}  // namespace

TEST_CASE("a source that depends on the pass gets the pass's seed and epoch") {
  accelerate::data::LoaderOf loader(std::make_shared<PassNumbers>(true), {.seed = 7});
  CHECK(loader.shuffles());  // so its seed becomes rank 0's
  CHECK(loader.source()->size() == 3);
  int64_t sample = 0;
  for (auto& row : loader) CHECK(row.equal(torch::tensor({{int64_t{7}, int64_t{0}, sample++}})));
  auto place = loader.begin();
  loader.set_seed(8);
  loader.set_epoch(5);
  ++place;
  CHECK(place->equal(torch::tensor({{7, 1, 1}})));
  CHECK(loader.begin()->equal(torch::tensor({{8, 5, 0}})));

  torch::manual_seed(42);
  accelerate::data::LoaderOf unset(std::make_shared<PassNumbers>(true));
  CHECK(unset.begin()->equal(torch::tensor({{42, 0, 0}})));
  accelerate::data::LoaderOf sequential(std::make_shared<PassNumbers>(false));
  CHECK(sequential.begin()->equal(torch::tensor({{0, 0, 0}})));
  CHECK_FALSE(sequential.shuffles());
}
