// SPDX-License-Identifier: Apache-2.0
#include "tests/data/support.hpp"
//
#include "accelerate/data/combinators/zip.hpp"

using namespace sources;

TEST_CASE("zip returns sample i of each source") {
  const auto names = data::memory_source(std::pair(torch::zeros(3), std::vector<std::string>{"a", "b", "c"}));
  const auto zipped = data::zip(numbers(3), names);
  CHECK(zipped->size() == 3);
  const auto [batch, named] = zipped->read(index({2, 0, 2}));
  CHECK(list(batch.data) == Numbers{2, 0, 2});
  CHECK(named.second == std::vector<std::string>{"c", "a", "c"});
  CHECK_THROWS_WITH((void)zipped->read(index({3})), "zip: sample 3 is requested, there are 3 samples");
  CHECK(std::tuple_size_v<decltype(data::zip(numbers(2), numbers(2), numbers(2))->read(index({0})))> == 3);
}

TEST_CASE("two ranks read their shards of zip, and empty sources have no batches") {
  const auto show = [](const auto& batch) { return list(std::get<1>(batch).data); };
  CHECK(share_of(data::zip(numbers(5), numbers(5, 100)), {.batch_size = 2}, 1, 2, show) ==
        std::vector<Numbers>{{102, 103}, {101, 102}});
  CHECK(share_of(data::zip(numbers(0), numbers(0)), {.batch_size = 2}, 1, 2, show).empty());
}

TEST_CASE("sources of different sizes are refused with both numbers") {
  CHECK_THROWS_WITH((void)data::zip(numbers(3), numbers(3), numbers(4)),
                    "zip: source 2 has 4 samples, source 0 3; all must have as many (data::take)");
}

TEST_CASE("zip forwards the ReadContext of the pass to all sources") {
  const auto source = std::make_shared<PassSource>();
  const auto both = in_pass(data::zip(source, source));
  CHECK(list(std::get<0>(both)) == Numbers{7, 3, 0, 1});
  CHECK(list(std::get<1>(both)) == Numbers{7, 3, 0, 1});
}
