// SPDX-License-Identifier: Apache-2.0
#include "tests/data/support.hpp"
//
#include "accelerate/data/memory.hpp"

using namespace accelerate::data;
using sources::index;
using sources::list;
using sources::Numbers;
using sources::share_of;
using Strings = std::vector<std::string>;

namespace {

struct WithNames {
  at::Tensor pixels;
  std::map<std::string, at::Tensor> labels;
  Strings names;
  double scale = 0.0;
};
auto tree_members(WithNames& all) { return std::tie(all.pixels, all.labels, all.names, all.scale); }

WithNames five() { return {torch::arange(10).view({5, 2}), {{"x", torch::arange(5)}}, {"a", "b", "c", "d", "e"}, 0.5}; }

}  // namespace

TEST_CASE("a struct of tensors, maps and lists in memory is read in batches of the same type") {
  const auto source = memory_source(five());
  CHECK(source->size() == 5);
  const WithNames batch = source->read(index({4, 0, 4}));
  CHECK(batch.pixels.equal(torch::tensor({{8, 9}, {0, 1}, {8, 9}})));
  CHECK(list(batch.labels.at("x")) == Numbers{4, 0, 4});
  CHECK(batch.names == Strings{"e", "a", "e"});
  CHECK(batch.scale == 0.5);
  CHECK(source->read(index({})).names.empty());
  CHECK_THROWS_WITH((void)source->read(index({5})), "memory_source: sample 5 is requested, there are 5 samples");
}

TEST_CASE("two ranks read their shards of a struct in memory") {
  auto loader = from_tensors(five(), {.batch_size = 2});
  loader.shard({.rank = 1, .world_size = 2});
  std::vector<Strings> names;
  for (auto& batch : loader) names.push_back(batch.names);
  CHECK(names == std::vector<Strings>{{"c", "d"}, {"b", "c"}});
}

TEST_CASE("pairs, vectors, maps, optionals and lists of samples can be sources in memory") {
  const auto pair = memory_source(std::pair(torch::arange(3), torch::arange(3) * 10));
  CHECK(list(pair->read(index({2, 1})).second) == Numbers{20, 10});
  const auto columns = memory_source(std::vector{torch::arange(3), torch::arange(6).view({3, 2})});
  CHECK(columns->read(index({1}))[1].equal(torch::tensor({{2, 3}})));
  const auto map = memory_source(std::map<std::string, at::Tensor>{{"a", torch::arange(3)}});
  CHECK(list(map->read(index({2, 2})).at("a")) == Numbers{2, 2});
  const auto maybe = memory_source(std::tuple(std::optional(torch::arange(3)), std::optional<at::Tensor>()));
  CHECK(list(*std::get<0>(maybe->read(index({1})))) == Numbers{1});
  CHECK_FALSE(std::get<1>(maybe->read(index({1}))).has_value());
  const auto samples = memory_source(
      std::vector{std::pair(torch::tensor(4), torch::tensor(40)), std::pair(torch::tensor(5), torch::tensor(50))});
  CHECK(samples->size() == 2);
  CHECK(samples->read(index({1})).at(0).second.item<int64_t>() == 50);
}

TEST_CASE("a data-target struct equals two tensors, and undefined targets stay undefined") {
  const auto source = memory_source(Batch{torch::arange(4), {}});
  CHECK(list(source->read(index({3})).data) == Numbers{3});
  CHECK_FALSE(source->read(index({3})).target.defined());
}

TEST_CASE("two tensors in braces are a data-target pair") {
  const at::Tensor x = torch::arange(5), y = torch::arange(5) * 10;
  Loader loader = from_tensors({x, y}, {.batch_size = 2});
  std::vector<std::pair<Numbers, Numbers>> batches;
  for (auto& [data, target] : loader) batches.emplace_back(list(data), list(target));
  CHECK(batches == std::vector<std::pair<Numbers, Numbers>>{{{0, 1}, {0, 10}}, {{2, 3}, {20, 30}}, {{4}, {40}}});
  CHECK(from_tensors({x, y}).size() == 5);
  CHECK(list(memory_source({x, y})->read(index({3})).target) == Numbers{30});
  CHECK(list(memory_source({x, y}, at::kCPU)->read(index({3})).data) == Numbers{3});
  CHECK_THROWS_WITH((void)from_tensors({x, torch::arange(4)}),
                    "memory_source: data has 5 samples, target 4; both must be [N, ...]");
}

TEST_CASE("a batch of a tree in memory belongs to the user") {
  auto all = five();
  all.pixels.requires_grad_(false);
  const auto source = memory_source(all);
  auto batch = source->read(index({0, 1}));
  batch.pixels.add_(100);
  batch.names[0] = "changed";
  CHECK(all.pixels.equal(torch::arange(10).view({5, 2})));
  CHECK(source->read(index({0})).names == Strings{"a"});
  all.pixels[0][0] = 77;  // referenced, not copied
  CHECK(source->read(index({0})).pixels[0][0].item<int64_t>() == 77);
}

TEST_CASE("leaves with different numbers of samples are refused, with both numbers and both leaves") {
  auto all = five();
  all.labels["x"] = torch::arange(4);
  CHECK_THROWS_WITH((void)memory_source(all), "memory_source: [0] has 5 samples, [1][\"x\"] 4; both must be [N, ...]");
  all = five();
  all.names.pop_back();
  CHECK_THROWS_WITH((void)memory_source(all), "memory_source: [0] has 5 samples, [2] 4; both must be [N, ...]");
  CHECK_THROWS_WITH((void)memory_source(std::pair(torch::arange(3), torch::tensor(1))),
                    "memory_source: [1] has no first dimension, must be [N, ...]");
  CHECK_THROWS_WITH((void)memory_source(std::pair(torch::arange(3), torch::zeros(3, torch::kMeta))),
                    "memory_source: [1] is on meta, must be on the CPU; batches are moved by prepare");
  CHECK_THROWS_WITH((void)memory_source(std::map<std::string, at::Tensor>()),
                    "memory_source: nothing in the data has a first dimension, must be [N, ...]");
}

TEST_CASE("an empty tree in memory has no batches") {
  auto loader = from_tensors(std::pair(torch::zeros({0, 3}), Strings()), {.batch_size = 2});
  CHECK(loader.size() == 0);
  for ([[maybe_unused]] auto& batch : loader) FAIL("a batch of nothing");
  CHECK(loader.source()->read(index({})).first.sizes() == at::IntArrayRef{0, 3});
}

TEST_CASE("rows are gathered as by index_select: any row size, order and dtype, and large batches") {
  const auto before = at::get_num_threads();
  at::set_num_threads(3);
  torch::manual_seed(3);
  const auto check = [](const at::Tensor& data, int64_t batch) {
    const auto numbers = torch::randint(data.size(0), {batch}, torch::kLong);
    CHECK(memory_source(data)->read(numbers).data.equal(data.index_select(0, numbers)));
  };
  for (const int64_t width : {1, 2, 3, 4, 8, 9, 784, 20000}) {
    CAPTURE(width);
    const auto bytes = torch::randint(256, {50, width}, torch::kByte);
    check(bytes, 1);
    check(bytes, 37);
    check(bytes, 3000);  // copied by more than one thread
    check(bytes.to(torch::kDouble), 300);
  }
  const auto images = torch::rand({20, 3, 5, 7});
  check(images.to(at::MemoryFormat::ChannelsLast), 9);
  check(images.transpose(0, 1), 9);
  check(images.slice(0, 3), 9);
  check(torch::rand({20, 3}, torch::kComplexFloat).conj(), 9);
  check(torch::rand({20}, torch::kBFloat16), 9);
  check(torch::rand({20, 0}), 9);
  check(torch::rand({1, 4}).expand({20, 4}), 9);
  const auto sequential = torch::arange(40).slice(0, 3, 33);
  CHECK(memory_source(torch::arange(40))->read(sequential).data.equal(sequential));
  at::set_num_threads(before);
}

TEST_CASE("a data-target pair names a sample out of range") {
  CHECK_THROWS_WITH((void)memory_source(torch::arange(5))->read(index({0, -1})),
                    "memory_source: sample -1 is requested, there are 5 samples");
}
