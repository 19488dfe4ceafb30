// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <map>
#include <numeric>
#include <string>

#include "accelerate/tree/split.hpp"

namespace tree = accelerate::tree;
using tree::Part;
using tree::split_between_processes;
using tree::split_part;

namespace {

std::vector<int> count_to(int n) {
  std::vector<int> items(static_cast<size_t>(n));
  std::iota(items.begin(), items.end(), 0);
  return items;
}

/// Every rank's part.
template <typename T>
std::vector<T> parts(const T& inputs, int64_t world, bool padding = false) {
  std::vector<T> all;
  for (int64_t rank = 0; rank < world; ++rank) all.push_back(split_between_processes(inputs, rank, world, padding));
  return all;
}

using Ints = std::vector<std::vector<int>>;
using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("the first ranks have one more item, and padding repeats the whole input's last item") {
  CHECK(parts(count_to(7), 3) == Ints{{0, 1, 2}, {3, 4}, {5, 6}});
  CHECK(parts(count_to(7), 3, true) == Ints{{0, 1, 2}, {3, 4, 6}, {5, 6, 6}});
  CHECK(parts(Names{"A", "B", "C"}, 2) == std::vector<Names>{{"A", "B"}, {"C"}});
  CHECK(parts(Names{"A", "B", "C"}, 2, true) == std::vector<Names>{{"A", "B"}, {"C", "C"}});
  CHECK(parts(Names{"a"}, 3) == std::vector<Names>{{"a"}, {}, {}});
  CHECK(parts(Names{"a"}, 3, true) == std::vector<Names>{{"a"}, {"a"}, {"a"}});
  CHECK(parts(Names{}, 2, true) == std::vector<Names>{{}, {}});
}

TEST_CASE("17 items: the first 17 mod P ranks have one more, and joining the padded parts restores the input") {
  const auto items = count_to(17);
  for (const int64_t world : {1, 2, 4, 8}) {
    std::vector<int> joined;
    for (int64_t rank = 0; rank < world; ++rank) {
      CHECK(split_part(17, rank, world).count == 17 / world + (rank < 17 % world ? 1 : 0));
      const auto padded = split_between_processes(items, rank, world, true);
      CHECK(static_cast<int64_t>(padded.size()) == (17 + world - 1) / world);
      const auto mine = split_between_processes(items, rank, world);
      joined.insert(joined.end(), mine.begin(), mine.end());
    }
    CHECK(joined == items);
  }
  const auto padded = parts(items, 1, true).front();
  CHECK(padded == items);
}

TEST_CASE("a tensor is split by row and padded with its last row") {
  const auto rows = torch::arange(8).view({2, 4});
  CHECK(split_between_processes(rows, 1, 2).equal(rows.slice(0, 1)));
  const auto three = torch::arange(3);
  CHECK(split_between_processes(three, 1, 2, true).equal(torch::tensor({2, 2})));
  CHECK(split_between_processes(three, 1, 2).equal(torch::tensor({2})));
}

TEST_CASE("maps, tuples and lists of one length are split member by member; strings are not split") {
  const std::map<std::string, std::vector<int>> keyed{{"a", {1, 2, 3}}, {"b", {4, 5, 6}}};
  CHECK(split_between_processes(keyed, 1, 2) == std::map<std::string, std::vector<int>>{{"a", {3}}, {"b", {6}}});
  CHECK(keyed.at("a").size() == 3);
  const auto [rows, names, title, number] =
      split_between_processes(std::tuple{torch::arange(2), Names{"x", "y"}, std::string("abc"), 7}, 1, 2);
  CHECK(rows.equal(torch::tensor({1})));
  CHECK(names == Names{"y"});
  CHECK(title == "abc");
  CHECK(number == 7);
}

TEST_CASE("invalid splits are refused with both values") {
  const std::map<std::string, std::vector<int>> uneven{{"a", {1, 2, 3}}, {"b", {4}}};
  CHECK_THROWS_WITH((void)split_between_processes(uneven, 0, 2),
                    "split_between_processes: inputs of 3 and of 1 items, all must have one length");
  CHECK(split_between_processes(uneven, 0, 1) == uneven);
  CHECK_THROWS_WITH((void)split_part(-1, 0, 1), "split_between_processes: -1 items, must be at least 0");
  CHECK_THROWS_WITH((void)split_part(4, 0, 0), "split_between_processes: world_size is 0, must be at least 1");
  CHECK_THROWS_WITH((void)split_part(4, 4, 4), "split_between_processes: rank is 4, must be 0 to 3 with world_size 4");
}
