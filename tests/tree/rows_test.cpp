// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <map>

#include "accelerate/tree/rows.hpp"

namespace tree = accelerate::tree;

namespace {

struct Measured {
  torch::Tensor image, weight_of_class, loss;
  std::vector<std::string> names;
  std::string set;
};
auto tree_members(Measured& s) { return std::tie(s.image, s.weight_of_class, s.loss, s.names, s.set); }

Measured sample(int64_t first, int64_t rows) {
  Measured made{torch::arange(first, first + rows), torch::ones(3), torch::tensor(1.0), {}, "train"};
  for (int64_t i = 0; i < rows; ++i) made.names.push_back("n" + std::to_string(first + i));
  return made;
}

std::vector<int64_t> list(const torch::Tensor& tensor) {
  return {tensor.data_ptr<int64_t>(), tensor.data_ptr<int64_t>() + tensor.numel()};
}

}  // namespace

TEST_CASE("a batch has the rows of its first tensor with rows, a list of samples as many as it has items") {
  using Pair = std::pair<torch::Tensor, torch::Tensor>;
  CHECK(tree::rows(torch::zeros({4, 2})) == 4);
  CHECK(tree::rows(std::vector{torch::zeros({4, 2}), torch::zeros(4)}) == 4);  // columns
  CHECK(tree::rows(std::vector{Pair{torch::zeros({4, 2}), torch::zeros(1)}}) == 1);
  CHECK(tree::rows(std::vector{sample(0, 4), sample(0, 4)}) == 2);
  CHECK(tree::rows(torch::tensor(1.0)) == std::nullopt);
  CHECK(tree::rows(7) == std::nullopt);
}

TEST_CASE("rows of structs are joined: tensors and lists of one item per row, and nothing else") {
  const auto small = sample(10, 2), large = sample(0, 4);
  const auto joined = tree::join_rows(small, {{&small, 0, 2}, {&large, 1, 2}});
  REQUIRE(joined);
  CHECK(list(joined->image) == std::vector<int64_t>{10, 11, 1, 2});
  CHECK(joined->names == std::vector<std::string>{"n10", "n11", "n1", "n2"});
  CHECK(joined->weight_of_class.size(0) == 3);
  CHECK(joined->loss.dim() == 0);
  CHECK(joined->set == "train");
  CHECK(list(small.image) == std::vector<int64_t>{10, 11});
}

TEST_CASE("rows of maps, columns, optionals, pairs and lists of samples are joined") {
  using Map = std::map<std::string, torch::Tensor>;
  const Map short_map{{"a", torch::arange(2)}}, long_map{{"a", torch::arange(5, 9)}, {"b", torch::arange(4)}};
  CHECK(list(tree::join_rows(short_map, {{&short_map, 0, 1}, {&long_map, 0, 2}})->at("a")) ==
        std::vector<int64_t>{0, 5, 6});
  const std::vector<torch::Tensor> columns{torch::arange(2), torch::arange(2) * 10};
  CHECK(list(tree::join_rows(columns, {{&columns, 0, 2}, {&columns, 1, 1}})->at(1)) == std::vector<int64_t>{0, 10, 10});
  using Pair = std::pair<torch::Tensor, std::optional<torch::Tensor>>;
  const Pair pair{torch::arange(2), torch::arange(2)};
  CHECK(list(*tree::join_rows(pair, {{&pair, 1, 1}, {&pair, 0, 2}})->second) == std::vector<int64_t>{1, 0, 1});
  const std::vector<Measured> samples{sample(0, 1), sample(1, 1)};
  const auto three = tree::join_rows(samples, {{&samples, 0, 2}, {&samples, 0, 1}});
  REQUIRE(three->size() == 3);
  CHECK(list(three->at(2).image) == std::vector<int64_t>{0});
}

TEST_CASE("rows of batches that do not go together are not joined") {
  using Map = std::map<std::string, torch::Tensor>;
  const Map a{{"a", torch::arange(2)}}, b{{"b", torch::arange(2)}};
  CHECK(!tree::join_rows(a, {{&a, 0, 2}, {&b, 0, 1}}));
  const auto wide = torch::zeros({2, 3}), narrow = torch::zeros({2, 2}), doubles = wide.to(torch::kDouble);
  CHECK(!tree::join_rows(wide, {{&narrow, 0, 1}}));
  CHECK(!tree::join_rows(wide, {{&doubles, 0, 1}}));
  CHECK(!tree::join_rows(wide, {{&wide, 1, 2}}));
  CHECK(!tree::join_rows(torch::tensor(1.0), {}));
}
