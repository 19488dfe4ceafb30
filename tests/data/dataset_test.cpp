// SPDX-License-Identifier: Apache-2.0
#include "tests/data/support.hpp"
//
#include <map>

#include "accelerate/base/log.hpp"
#include "accelerate/data/dataset.hpp"

using namespace accelerate::data;
using sources::index;
using sources::list;
using sources::Numbers;
using sources::share_of;
using Strings = std::vector<std::string>;

namespace {

/// Sample i: a tensor with value i, the number i, a name.
struct Files {
  [[nodiscard]] size_t size() const { return 5; }
  [[nodiscard]] std::tuple<at::Tensor, int, std::string> get(int64_t i) const {
    return {torch::full({2}, i), static_cast<int>(i), "f" + std::to_string(i)};
  }
};

/// Sample i has i numbers.
struct Ragged {
  [[nodiscard]] int size() const { return 4; }
  [[nodiscard]] std::vector<int64_t> get(size_t i) const { return std::vector<int64_t>(i, 7); }
};

template <typename Indices>
struct ReadAtOnce {
  [[nodiscard]] int64_t size() const { return 3; }
  [[nodiscard]] Batch get_batch(const Indices& indices) const {
    at::Tensor numbers;
    if constexpr (std::same_as<Indices, at::Tensor>) {
      numbers = indices.clone();
    } else {
      numbers = index(Numbers(indices.begin(), indices.end()));
    }
    return {numbers, numbers * 10};
  }
};

struct TorchNumbers : torch::data::datasets::Dataset<TorchNumbers> {
  torch::data::Example<> get(size_t i) override {
    ++gets;
    const auto number = torch::tensor(static_cast<int64_t>(i));
    return {number, number * 10};
  }
  [[nodiscard]] std::optional<size_t> size() const override { return known ? std::optional<size_t>(5) : std::nullopt; }
  bool known = true;
  int gets = 0;
};

}  // namespace

TEST_CASE("a dataset with size() and get(i) is a source with collated samples") {
  const auto source = dataset_source(Files());
  CHECK(source->size() == 5);
  CHECK_FALSE(source->seeded());
  const auto [tensor, number, name] = source->read(index({3, 1, 3}));
  CHECK(tensor.equal(torch::tensor({{3, 3}, {1, 1}, {3, 3}})));
  CHECK(list(number) == Numbers{3, 1, 3});
  CHECK(name == Strings{"f3", "f1", "f3"});
  CHECK_THROWS_WITH((void)source->read(index({0, 5})), "dataset: sample 5 is requested, there are 5 samples");
  CHECK_THROWS_WITH((void)source->read(index({-1})), "dataset: sample -1 is requested, there are 5 samples");
  CHECK_THROWS_WITH((void)source->read(torch::zeros(2)),
                    "dataset: the indices are CPUFloatType[2], must be [B] int64 on the CPU");
  CHECK_THROWS_WITH((void)source->read({}), "dataset: the indices are no tensor, must be [B] int64 on the CPU");
}

TEST_CASE("two ranks read their shards of a dataset") {
  auto loader = from_dataset(Files(), {.batch_size = 2});
  loader.shard({.rank = 1, .world_size = 2});
  std::vector<Strings> names;
  for (auto& [tensor, number, name] : loader) names.push_back(name);
  CHECK(names == std::vector<Strings>{{"f2", "f3"}, {"f1", "f2"}});
}

TEST_CASE("a dataset is owned, referenced or shared") {
  TorchNumbers mine;
  (void)dataset_source(std::ref(mine))->read(index({0, 1}));
  CHECK(mine.gets == 2);
  (void)dataset_source(mine)->read(index({0, 1}));
  CHECK(mine.gets == 2);
  const auto shared = std::make_shared<TorchNumbers>();
  const auto source = dataset_source(shared);
  (void)source->read(index({4}));
  CHECK(shared->gets == 1);
  const Files fixed;
  CHECK(dataset_source(std::cref(fixed))->size() == 5);
  CHECK(dataset_source(std::make_shared<const Files>())->size() == 5);
  CHECK_THROWS_WITH((void)dataset_source(std::shared_ptr<Files>()), "dataset: the source is a null pointer");
}

TEST_CASE("several workers read a dataset with a const get() unless it is marked as not thread-safe") {
  struct Alone : Files {
    [[nodiscard]] bool thread_safe() const { return false; }
  };
  CHECK(dataset_source(Files())->thread_safe());
  CHECK_FALSE(dataset_source(Alone())->thread_safe());
  CHECK_FALSE(dataset_source(TorchNumbers())->thread_safe());
  CHECK(dataset_source(ReadAtOnce<at::Tensor>())->thread_safe());
}

TEST_CASE("get_batch accepts its indices as a tensor, a span, or a vector") {
  const auto check = [](const SourcePtr<Batch>& source) {
    CHECK(sources::read(source, {2, 0, 2}) == Numbers{2, 0, 2});
  };
  check(dataset_source(ReadAtOnce<at::Tensor>()));
  check(dataset_source(ReadAtOnce<std::span<const int64_t>>()));
  check(dataset_source(ReadAtOnce<std::vector<int64_t>>()));
  check(dataset_source(ReadAtOnce<std::vector<size_t>>()));
}

TEST_CASE("get() may take the ReadContext, so random numbers do not depend on workers and ranks") {
  struct Noisy {
    [[nodiscard]] int64_t size() const { return 24; }
    [[nodiscard]] at::Tensor get(int64_t i, const ReadContext& pass) const {
      return torch::cat({torch::tensor({static_cast<double>(i)}),
                         torch::rand({3}, sample_generator(pass, i), torch::dtype(torch::kDouble))});
    }
  };
  const auto drawn = [](int64_t workers, int64_t ranks, int64_t epoch, uint64_t seed) {
    std::map<double, at::Tensor> rows;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      auto loader = from_dataset(Noisy(), {.batch_size = 2, .shuffle = true, .seed = seed, .num_workers = workers});
      loader.shard({.rank = rank, .world_size = ranks});
      loader.set_epoch(epoch);
      for (auto& batch : loader) {
        for (int64_t i = 0; i < 2; ++i) rows[batch[i][0].item<double>()] = batch[i].clone();
      }
    }
    std::vector<at::Tensor> sorted;
    for (const auto& [i, row] : rows) sorted.push_back(row);
    return torch::stack(sorted);
  };
  const auto alone = drawn(0, 1, 3, 5);
  CHECK(alone.size(0) == 24);
  for (const int64_t workers : {0, 1, 3}) {
    for (const int64_t ranks : {1, 2}) CHECK(drawn(workers, ranks, 3, 5).equal(alone));
  }
  CHECK_FALSE(drawn(2, 1, 4, 5).equal(alone));
  CHECK_FALSE(drawn(2, 1, 3, 6).equal(alone));
  CHECK(std::get<0>(torch::_unique(alone.slice(1, 1))).numel() == 72);  // each sample has different numbers
  CHECK(dataset_source(Noisy())->seeded());
  CHECK(dataset_source(Noisy())->thread_safe());
}

TEST_CASE("get_batch may take the ReadContext too") {
  struct ReadsContext {
    [[nodiscard]] int64_t size() const { return 3; }
    [[nodiscard]] at::Tensor get_batch(std::span<const int64_t> indices, const ReadContext& pass) const {
      return torch::tensor({static_cast<int64_t>(pass.seed), pass.epoch, static_cast<int64_t>(indices.size())});
    }
  };
  auto loader = from_dataset(ReadsContext(), {.batch_size = 3, .seed = 9});
  loader.set_epoch(4);
  for (auto& batch : loader) CHECK(list(batch) == Numbers{9, 4, 3});
  CHECK(loader.shuffles());
}

TEST_CASE("a sample's generator does not use the default one, and layers have separate numbers") {
  torch::manual_seed(1);
  const auto expected = torch::rand(3);
  torch::manual_seed(1);
  const auto first = torch::rand({4}, sample_generator({.seed = 5}, 0));
  CHECK(torch::rand(3).equal(expected));
  CHECK(torch::rand({4}, sample_generator({.seed = 5}, 0)).equal(first));
  CHECK_FALSE(torch::rand({4}, sample_generator({.seed = 5, .layer = 1}, 0)).equal(first));
}

TEST_CASE("samples that get_batch returns as a list are collated") {
  struct Lists {
    [[nodiscard]] int64_t size() const { return 4; }
    [[nodiscard]] std::vector<std::pair<at::Tensor, int>> get_batch(std::span<const int64_t> indices) const {
      std::vector<std::pair<at::Tensor, int>> samples;
      for (const auto i : indices) samples.emplace_back(torch::tensor(i), static_cast<int>(i));
      if (indices.size() == 3) samples.pop_back();
      return samples;
    }
  };
  const auto source = dataset_source(Lists());
  CHECK(list(source->read(index({3, 1})).first) == Numbers{3, 1});
  CHECK_THROWS_WITH((void)source->read(index({3, 1, 2})),
                    "dataset: get_batch returned 2 samples for 3 indices; must be one each");
}

TEST_CASE("torch::data datasets are sources: single, mapped or stacked") {
  const SourcePtr<torch::data::Example<>> single = dataset_source(TorchNumbers());
  CHECK(list(single->read(index({4, 0})).target) == Numbers{40, 0});
  auto stacked = from_dataset(TorchNumbers()
                                  .map(torch::data::transforms::TensorLambda<>([](at::Tensor x) { return x + 1; }))
                                  .map(torch::data::transforms::Stack<>()),
                              {.batch_size = 2});
  stacked.shard({.rank = 1, .world_size = 2});
  std::vector<Numbers> read;
  for (auto& [data, target] : stacked) read.push_back(list(data));
  CHECK(read == std::vector<Numbers>{{3, 4}, {2, 3}});
  const auto tensors = dataset_source(torch::data::datasets::TensorDataset(torch::arange(3)));
  CHECK(list(tensors->read(index({2, 1})).data) == Numbers{2, 1});

  TorchNumbers endless;
  endless.known = false;
  CHECK_THROWS_WITH(
      (void)dataset_source(endless),
      "dataset: size() is empty, so samples cannot be read by index; a data set with a known size is needed");
}

TEST_CASE("a custom collate function makes the batches") {
  const auto padded = dataset_source(Ragged(), pad_collate(-1));
  CHECK(padded->read(index({2, 1})).equal(torch::tensor({{7, 7}, {7, -1}})));
  auto masked = from_dataset(Ragged(), {.batch_size = 4}, pad_collate_with_mask());
  for (auto& [batch, mask] : masked) CHECK(list(mask.sum(1)) == Numbers{0, 1, 2, 3});

  const auto lengths = [](const std::vector<std::vector<int64_t>>& samples) {
    Numbers sizes;
    for (const auto& sample : samples) sizes.push_back(static_cast<int64_t>(sample.size()));
    return index(sizes);
  };
  CHECK(list(dataset_source(Ragged(), lengths)->read(index({3, 0}))) == Numbers{3, 0});
  const auto own_numbers = [](const std::vector<std::vector<int64_t>>&, std::span<const int64_t> numbers) {
    return index(Numbers(numbers.begin(), numbers.end()));
  };
  CHECK(list(dataset_source(Ragged(), own_numbers)->read(index({3, 0}))) == Numbers{3, 0});
}

TEST_CASE("a sample that does not match the others is named by its number in the dataset") {
  CHECK_THROWS_WITH((void)dataset_source(Ragged())->read(index({3, 1})),
                    "collate: sample 1 is [1], sample 3 is [3]; all must have one shape; pad_collate pads a first "
                    "dimension that differs");
}

TEST_CASE("a log line names the sample that cannot be read, in any batch and for any exception") {
  struct Torn {
    bool as_error;
    [[nodiscard]] size_t size() const { return 100; }
    [[nodiscard]] int64_t get(int64_t i) const {
      if (i == 37 && as_error) accelerate::base::fail(accelerate::ErrorKind::data, {}, "my_files", "page 3 is torn");
      if (i == 37) throw std::runtime_error("page 3 is torn\nand more");
      return i;
    }
  };
  for (const int64_t workers : {0, 2}) {
    for (const int64_t batch_size : {2, 64}) {
      for (const bool as_error : {false, true}) {
        accelerate::base::reset_log_once();
        std::vector<std::string> lines;
        const auto before =
            accelerate::base::set_log_handler([&](auto, std::string_view line) { lines.emplace_back(line); });
        auto loader = from_dataset(Torn{as_error}, {.batch_size = batch_size, .num_workers = workers});
        const auto walk = [&] {
          for ([[maybe_unused]] auto& batch : loader) continue;
        };
        if (as_error) {
          CHECK_THROWS_WITH_AS(walk(), "my_files: page 3 is torn", accelerate::Error);
        } else {
          CHECK_THROWS_WITH_AS(walk(), "page 3 is torn\nand more", std::runtime_error);
        }
        accelerate::base::set_log_handler(before);
        const std::string sample = "dataset: sample 37 could not be read: ";
        REQUIRE(lines.size() == (as_error ? 1 : 2));
        CHECK(lines[0] == sample + (as_error ? "my_files: page 3 is torn" : "page 3 is torn"));
        if (as_error) continue;
        CHECK(lines[1] == (batch_size == 2
                               ? "loader: batch 18 (samples 36, 37) could not be read: page 3 is torn"
                               : "loader: batch 0 (samples 0, 1, 2, 3, 4, 5, 6, 7 ... (64 samples)) could not be "
                                 "read: page 3 is torn"));
      }
    }
  }
}

TEST_CASE("an empty dataset has no batches, and its exceptions keep their type") {
  struct Empty {
    [[nodiscard]] size_t size() const { return 0; }
    [[nodiscard]] int get(size_t) const { throw std::out_of_range("none"); }
  };
  auto empty = from_dataset(Empty(), {.batch_size = 2});
  CHECK(empty.size() == 0);
  for ([[maybe_unused]] auto& batch : empty) FAIL("a batch of nothing");
  CHECK_THROWS_WITH((void)empty.source()->read(index({})), "collate: there are 0 samples, must be at least 1");
  struct Broken {
    [[nodiscard]] size_t size() const { return 1; }
    [[nodiscard]] int get(size_t) const { throw std::out_of_range("none"); }
  };
  auto broken = from_dataset(Broken());
  CHECK_THROWS_AS((void)broken.begin(), std::out_of_range);
}
