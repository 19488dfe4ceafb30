// SPDX-License-Identifier: Apache-2.0
#include "tests/data/support.hpp"
//
#include "accelerate/data/combinators/concatenate.hpp"

using namespace sources;
using Strings = std::vector<std::string>;

TEST_CASE("concatenate returns the samples of its sources one after another, in the requested order") {
  const auto joined = data::concatenate(numbers(3), numbers(2, 100), numbers(2, 200));
  CHECK(joined->size() == 7);
  CHECK(read(joined, {0, 1, 2, 3, 4, 5, 6}) == Numbers{0, 1, 2, 100, 101, 200, 201});
  CHECK(read(joined, {6, 0, 3, 6, 2, 0}) == Numbers{201, 0, 100, 201, 2, 0});
  CHECK(read(joined, {4, 3, 4}) == Numbers{101, 100, 101});
  CHECK_THROWS_WITH((void)joined->read(index({7})), "concatenate: sample 7 is requested, there are 7 samples");
}

TEST_CASE("a batch reads each source once, for its own samples") {
  const auto first = std::make_shared<CountedReads>(3);
  const auto second = std::make_shared<CountedReads>(2);
  const auto joined = data::concatenate(std::vector<data::SourcePtr<data::Batch>>{first, second});
  (void)joined->read(index({4, 0, 4, 1}));
  CHECK(first->reads == Numbers{1, 1, 0});
  CHECK(second->reads == Numbers{0, 2});
}

TEST_CASE("lists, maps and missing targets are concatenated too") {
  using Tree = std::pair<std::map<std::string, at::Tensor>, Strings>;
  const auto tree = [](int64_t from, Strings names) {
    return data::memory_source(Tree{{{"x", torch::arange(from, from + 2)}}, std::move(names)});
  };
  const auto [map, names] = data::concatenate(tree(0, {"a", "b"}), tree(8, {"c", "d"}))->read(index({3, 0, 2}));
  CHECK(list(map.at("x")) == Numbers{9, 0, 8});
  CHECK(names == Strings{"d", "a", "c"});
  const auto bare = [](int64_t from) { return data::memory_source(torch::arange(from, from + 2)); };
  const auto batch = data::concatenate(bare(0), bare(5))->read(index({2, 1}));
  CHECK(list(batch.data) == Numbers{5, 1});
  CHECK_FALSE(batch.target.defined());
}

TEST_CASE("two ranks read their shards across sources, and empty sources are skipped") {
  CHECK(two_ranks(data::concatenate(numbers(3), numbers(0), numbers(2, 100))) ==
        std::vector<std::vector<Numbers>>{{{0, 1}, {101, 0}}, {{2, 100}, {1, 2}}});
  const auto nothing = data::concatenate(numbers(0), numbers(0));
  CHECK(two_ranks(nothing) == std::vector<std::vector<Numbers>>{{}, {}});
  CHECK(read(nothing, {}).empty());
  CHECK(read(data::concatenate(numbers(0), numbers(2)), {1, 0}) == Numbers{1, 0});
}

TEST_CASE("samples that do not match are named with their sources") {
  const auto of = [](const at::Tensor& tensor) { return data::memory_source(tensor, torch::zeros(tensor.size(0))); };
  const auto refused = [&](const at::Tensor& one, const at::Tensor& other) {
    (void)data::concatenate(of(one), of(other))->read(index({1, 0, 3}));
  };
  const std::string text =
      "concatenate: sample 1 of source 1 and sample 1 of source 0 do not go together at [0]: shape, dtype or "
      "structure, "
      "or the values that are stored once for all of them, differ";
  CHECK_THROWS_WITH(refused(torch::zeros({2, 3}), torch::zeros({2, 4})), text.c_str());
  CHECK_THROWS_WITH(refused(torch::zeros({2, 3}), torch::zeros({2, 3}, torch::kLong)), text.c_str());
  const auto bare = data::memory_source(torch::zeros(2));
  const auto target = [](const auto& one, const auto& other) {
    (void)data::concatenate(one, other)->read(index({0, 2}));
  };
  CHECK_THROWS_WITH(target(bare, of(torch::zeros(2))),
                    "concatenate: sample 0 of source 1 and sample 0 of source 0 do not go together at [1]: shape, "
                    "dtype or structure, or the values that are stored once for all of them, differ");
  CHECK_THROWS_WITH(target(of(torch::zeros(2)), bare),
                    "concatenate: sample 0 of source 1 and sample 0 of source 0 do not go together at [1]: shape, "
                    "dtype or structure, or the values that are stored once for all of them, differ");
  using Map = std::map<std::string, at::Tensor>;
  CHECK_THROWS_WITH(
      target(data::memory_source(Map{{"x", torch::zeros(2)}}), data::memory_source(Map{{"y", torch::zeros(2)}})),
      "concatenate: sample 0 of source 1 and sample 0 of source 0 do not go together: shape, dtype or "
      "structure, or the values that are stored once for all of them, differ");
  CHECK_THROWS_WITH((void)data::concatenate(std::vector<data::SourcePtr<data::Batch>>()),
                    "concatenate: there are 0 sources, must be at least 1");
  CHECK_THROWS_WITH((void)data::concatenate(numbers(1), std::shared_ptr<const data::Source>()),
                    "concatenate: the source is a null pointer");
  struct Endless final : data::Source {
    [[nodiscard]] int64_t size() const override { return int64_t{1} << 62; }
    [[nodiscard]] data::Batch read(const at::Tensor& indices) const override { return {indices, indices}; }
  };
  const auto endless = std::make_shared<Endless>();
  CHECK_THROWS_WITH((void)data::concatenate(endless, endless),
                    "concatenate: 4611686018427387904 and 4611686018427387904 samples are more than an int64 counts");
}

TEST_CASE("concatenate forwards the ReadContext of the pass") {
  const auto source = std::make_shared<PassSource>();
  const data::SourcePtr<at::Tensor> joined = data::concatenate(source, source);
  CHECK(joined->seeded());
  CHECK_FALSE(joined->thread_safe());
  CHECK(data::concatenate(numbers(1), numbers(1))->thread_safe());
  CHECK(
      joined->read_in_pass(index({5, 1}), {.seed = 7, .epoch = 3}).equal(torch::tensor({{7, 3, 0, 1}, {7, 3, 0, 1}})));
}
