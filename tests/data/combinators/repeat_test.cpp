// SPDX-License-Identifier: Apache-2.0
#include "tests/data/support.hpp"
//
#include "accelerate/data/combinators/repeat.hpp"

using namespace sources;

TEST_CASE("repeat returns the samples round after round") {
  const auto thrice = data::repeat(numbers(3), 3);
  CHECK(thrice->size() == 9);
  CHECK(read(thrice, {0, 3, 8, 4, 4}) == Numbers{0, 0, 2, 1, 1});
  CHECK_THROWS_WITH((void)thrice->read(index({9})), "repeat: sample 9 is requested, there are 9 samples");
  CHECK(read(data::repeat(numbers(3), 1), {2, 1}) == Numbers{2, 1});
}

TEST_CASE("two ranks read their shards of repeated samples, and an empty source stays empty") {
  CHECK(two_ranks(data::repeat(numbers(3), 2)) ==
        std::vector<std::vector<Numbers>>{{{0, 1}, {1, 2}}, {{2, 0}, {0, 1}}});
  CHECK(two_ranks(data::repeat(numbers(0), 5)) == std::vector<std::vector<Numbers>>{{}, {}});
  CHECK(read(data::repeat(numbers(0), 5), {}).empty());
  CHECK(two_ranks(data::repeat(numbers(3), 0)) == std::vector<std::vector<Numbers>>{{}, {}});
}

TEST_CASE("repeat refuses times below 0 and more samples than int64 can count") {
  CHECK_THROWS_WITH((void)data::repeat(numbers(3), -1), "repeat: times is -1, must be at least 0");
  CHECK_THROWS_WITH((void)data::repeat(numbers(4), int64_t{1} << 62),
                    "repeat: 4611686018427387904 times 4 samples are more than an int64 counts");
}

TEST_CASE("repeat forwards the ReadContext of the pass") {
  CHECK(list(in_pass(data::repeat(std::make_shared<PassSource>(), 2))) == Numbers{7, 3, 0, 1});
}
