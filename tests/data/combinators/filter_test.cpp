// SPDX-License-Identifier: Apache-2.0
#include "tests/data/support.hpp"
//
#include "accelerate/data/combinators/filter.hpp"

using namespace sources;

namespace {

bool odd(const data::Batch& sample) { return sample.data.item<int64_t>() % 2 == 1; }

}  // namespace

TEST_CASE("filter keeps the samples for which the predicate is true, in their order") {
  const auto kept = data::filter(numbers(10), odd);
  CHECK(kept->size() == 5);
  CHECK(read(kept, {4, 0, 4, 2}) == Numbers{9, 1, 9, 5});
  CHECK_THROWS_WITH((void)kept->read(index({5})), "filter: sample 5 is requested, there are 5 samples");
}

TEST_CASE("the predicate is called once per sample, however often the kept ones are read") {
  const auto source = std::make_shared<CountedReads>(1000);
  int64_t calls = 0;
  const auto kept = data::filter(source, [&](const data::Batch& sample) {
    CHECK(sample.data.dim() == 0);
    return calls++ % 400 == 0;
  });
  CHECK(calls == 1000);
  CHECK(source->reads == Numbers(1000, 1));
  CHECK(read(kept, {0, 1, 2, 2}) == Numbers{0, 400, 800, 800});
  CHECK(calls == 1000);
}

TEST_CASE("two ranks read their shards of the kept samples, and empty results are valid") {
  CHECK(two_ranks(data::filter(numbers(10), odd)) ==
        std::vector<std::vector<Numbers>>{{{1, 3}, {9, 1}}, {{5, 7}, {3, 5}}});
  CHECK(two_ranks(data::filter(numbers(0), odd)) == std::vector<std::vector<Numbers>>{{}, {}});
  CHECK(data::filter(numbers(1), odd)->size() == 0);
}

TEST_CASE("a predicate gets structs and lists as single samples") {
  const std::vector<std::string> names{"cat", "dog", "cow"};
  const auto source = data::memory_source(std::pair(torch::arange(3), names));
  const auto kept = data::filter(
      source, [](const std::pair<at::Tensor, std::string>& sample) { return sample.second.starts_with("c"); });
  CHECK(kept->read(index({1, 0})).second == std::vector<std::string>{"cow", "cat"});
}

TEST_CASE("filter forwards the ReadContext, and its predicate gets epoch 0 and seed 0") {
  const auto kept = data::filter(std::make_shared<PassSource>(), [](const at::Tensor& sample) {
    CHECK(sample[0].item<int64_t>() == 0);
    CHECK(sample[1].item<int64_t>() == 0);
    return sample[3].item<int64_t>() > 0;
  });
  CHECK(list(in_pass(kept)) == Numbers{7, 3, 0, 2});
}
