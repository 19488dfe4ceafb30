// SPDX-License-Identifier: Apache-2.0
#include "tests/data/support.hpp"
//
#include "accelerate/data/combinators/map.hpp"
#include "accelerate/data/combinators/take.hpp"

using namespace sources;

namespace {

data::Batch plus_one(const data::Batch& batch) { return {batch.data + 1, batch.target + 10}; }

}  // namespace

TEST_CASE("map passes each batch to a function, also for random access and repeats") {
  const auto mapped = data::map(numbers(5), plus_one);
  CHECK(mapped->size() == 5);
  CHECK(read(mapped, {4, 0, 4}) == Numbers{5, 1, 5});
  CHECK_THROWS_WITH((void)mapped->read(index({5})), "map: sample 5 is requested, there are 5 samples");
}

TEST_CASE("map may return another batch type") {
  const auto mapped = data::map(numbers(5), [](const data::Batch& batch) {
    const auto rows = static_cast<size_t>(batch.data.size(0));
    return std::pair(batch.data.to(torch::kFloat), std::vector<std::string>(rows, "x"));
  });
  const auto [floats, names] = mapped->read(index({3, 1}));
  CHECK(floats.equal(torch::tensor({3.0F, 1.0F})));
  CHECK(names.size() == 2);
}

TEST_CASE("map_samples passes each sample to a function and collates the results") {
  const auto table = torch::arange(10).view({5, 2});
  const auto source = data::memory_source(std::pair(table, std::vector<std::string>{"a", "b", "c", "d", "e"}));
  const auto mapped = data::map_samples(source, [](const std::pair<at::Tensor, std::string>& sample) {
    CHECK(sample.first.sizes() == at::IntArrayRef{2});
    return std::tuple(sample.first.sum(), sample.second + "!", 1.5);
  });
  const auto [sum, name, number] = mapped->read(index({4, 1, 4}));
  CHECK(list(sum) == Numbers{17, 5, 17});
  CHECK(name == std::vector<std::string>{"e!", "b!", "e!"});
  CHECK(number.equal(torch::tensor({1.5, 1.5, 1.5}, torch::kDouble)));
  CHECK(read(data::map_samples(numbers(3), plus_one), {2, 0}) == Numbers{3, 1});
  CHECK_THROWS_WITH((void)mapped->read(index({-1})), "map_samples: sample -1 is requested, there are 5 samples");
}

TEST_CASE("map_samples names results that it cannot collate by their numbers in the source") {
  const auto ragged = data::map_samples(
      numbers(5), [](const data::Batch& sample) { return torch::zeros(sample.data.item<int64_t>()); });
  CHECK_THROWS_WITH((void)ragged->read(index({3, 1})),
                    "collate: sample 1 is [1], sample 3 is [3]; all must have one shape; pad_collate pads a first "
                    "dimension that differs");
}

TEST_CASE("two ranks read their shards of mapped samples, and an empty source stays empty") {
  CHECK(two_ranks(data::map(numbers(5), plus_one)) ==
        std::vector<std::vector<Numbers>>{{{1, 2}, {5, 1}}, {{3, 4}, {2, 3}}});
  const auto empty = data::map(numbers(0), plus_one);
  CHECK(two_ranks(empty) == std::vector<std::vector<Numbers>>{{}, {}});
  CHECK(read(empty, {}).empty());
  CHECK(two_ranks(data::map_samples(numbers(0), plus_one)) == std::vector<std::vector<Numbers>>{{}, {}});
}

TEST_CASE("combinators compose") {
  const auto composed = data::map(data::take(numbers(100), 3), plus_one);
  CHECK(composed->size() == 3);
  CHECK(read(composed, {2, 2}) == Numbers{3, 3});
}

TEST_CASE("map and map_samples forward the ReadContext of the pass") {
  const auto same = [](const at::Tensor& rows) { return rows; };
  const auto source = std::make_shared<PassSource>();
  CHECK(list(in_pass(data::map(source, same))) == Numbers{7, 3, 0, 1});
  CHECK(list(in_pass(data::map_samples(source, same))) == Numbers{7, 3, 0, 1});
  CHECK_FALSE(data::map(numbers(3), plus_one)->seeded());
}

TEST_CASE("a combinator without a source is refused") {
  const std::shared_ptr<const data::Source> none;
  CHECK_THROWS_WITH((void)data::map(none, plus_one), "map: the source is a null pointer");
  CHECK_THROWS_WITH((void)data::map_samples(none, plus_one), "map_samples: the source is a null pointer");
}
