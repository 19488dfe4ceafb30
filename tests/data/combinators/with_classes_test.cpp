// SPDX-License-Identifier: Apache-2.0
#include "tests/data/support.hpp"
//
#include "accelerate/data/combinators/map.hpp"
#include "accelerate/data/combinators/with_classes.hpp"

using namespace sources;

TEST_CASE("labels of any source are checked on read, and an invalid one names its sample") {
  const auto labels = torch::tensor({0, 2, 1, 3, -1});
  const auto source = data::with_classes(data::memory_source(torch::arange(5), labels), 3);
  CHECK(source->size() == 5);
  CHECK(list(source->read(index({2, 0, 1})).target) == Numbers{1, 0, 2});
  CHECK_THROWS_WITH_AS((void)source->read(index({1, 3})), "with_classes: sample 3 has label 3: expected 0 to 2",
                       accelerate::Error);
  CHECK_THROWS_WITH((void)source->read(index({4})), "with_classes: sample 4 has label -1: expected 0 to 2");
  data::LoaderOf loader(source, {.batch_size = 2});
  const auto walk = [&] {
    for ([[maybe_unused]] auto& batch : loader) continue;
  };
  CHECK_THROWS_WITH(walk(), "with_classes: sample 3 has label 3: expected 0 to 2");
}

TEST_CASE("a sample may have several labels, and a function can select them") {
  using Pair = std::pair<at::Tensor, at::Tensor>;
  const auto pairs = data::memory_source(Pair{torch::arange(3), torch::tensor({{0, 1}, {1, 9}, {1, 1}})});
  const auto source = data::with_classes(pairs, 2, &Pair::second);
  CHECK(list(source->read(index({2})).second) == Numbers{1, 1});
  CHECK_THROWS_WITH((void)source->read(index({2, 1})), "with_classes: sample 1 has label 9: expected 0 to 1");
  const auto by_function = data::with_classes(pairs, 10, [](Pair& pair) -> at::Tensor& { return pair.second; });
  CHECK(by_function->read(index({1})).second.size(0) == 1);
}

TEST_CASE("strided labels of a table column are read correctly") {
  const auto table = torch::tensor({{100, 0}, {101, 1}, {102, 2}, {103, 9}});
  const auto columns = data::map(data::memory_source(table), [](const data::Batch& batch) {
    return data::Batch{batch.data.select(1, 0), batch.data.select(1, 1)};
  });
  const auto source = data::with_classes(columns, 3);
  CHECK(list(source->read(index({0, 1, 2})).target) == Numbers{0, 1, 2});
  CHECK_THROWS_WITH((void)source->read(index({1, 3})), "with_classes: sample 3 has label 9: expected 0 to 2");
}

TEST_CASE("invalid labels are refused") {
  const auto check = [](const at::Tensor& target) {
    return data::with_classes(data::memory_source(torch::arange(3), target), 3);
  };
  CHECK_THROWS_WITH(
      (void)check(torch::ones(3))->read(index({1})),
      "with_classes: the labels are CPUFloatType[1], must be integers, one or more for each of 1 samples");
  CHECK_THROWS_WITH((void)check({})->read(index({1})),
                    "with_classes: the labels are no tensor, must be integers, one or more for each of 1 samples");
  CHECK_THROWS_WITH((void)data::with_classes(numbers(2), 0), "with_classes: classes is 0, must be at least 1");
}

TEST_CASE("with_classes forwards the ReadContext of the pass") {
  const auto source =
      data::with_classes(std::make_shared<PassSource>(), 10, [](at::Tensor& batch) -> at::Tensor& { return batch; });
  CHECK(list(in_pass(source)) == Numbers{7, 3, 0, 1});
}
