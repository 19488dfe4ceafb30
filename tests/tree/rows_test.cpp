// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <array>
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

TEST_CASE("a batch has as many rows as its first tensor with rows, a list of samples as many as it has items") {
  using Pair = std::pair<torch::Tensor, torch::Tensor>;
  CHECK(tree::rows(torch::zeros({4, 2})) == 4);
  CHECK(tree::rows(std::vector{torch::zeros({4, 2}), torch::zeros(4)}) == 4);  // columns
  CHECK(tree::rows(std::vector{Pair{torch::zeros({4, 2}), torch::zeros(1)}}) == 1);
  CHECK(tree::rows(std::vector{sample(0, 4), sample(0, 4)}) == 2);
  CHECK(tree::rows(torch::tensor(1.0)) == std::nullopt);
  CHECK(tree::rows(7) == std::nullopt);
}

TEST_CASE("rows of structs are joined: tensors and lists with one item per row, and nothing else") {
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

TEST_CASE("rows of inconsistent batches are not joined") {
  using Map = std::map<std::string, torch::Tensor>;
  const Map a{{"a", torch::arange(2)}}, b{{"b", torch::arange(2)}};
  CHECK(!tree::join_rows(a, {{&a, 0, 2}, {&b, 0, 1}}));
  const auto wide = torch::zeros({2, 3}), narrow = torch::zeros({2, 2}), doubles = wide.to(torch::kDouble);
  CHECK(!tree::join_rows(wide, {{&narrow, 0, 1}}));
  CHECK(!tree::join_rows(wide, {{&doubles, 0, 1}}));
  CHECK(!tree::join_rows(wide, {{&wide, 1, 2}}));
  CHECK(!tree::join_rows(torch::tensor(1.0), {}));
}

namespace {

struct View {
  torch::Tensor x;
  std::vector<std::string> names;
  auto tree_members() { return std::tie(x, names); }
};
template <typename Views>
struct Seen {
  torch::Tensor id;
  Views views;
  auto tree_members() { return std::tie(id, views); }
};
using PairView = std::pair<torch::Tensor, torch::Tensor>;

std::vector<std::string> texts_for(const torch::Tensor& ids) {
  std::vector<std::string> all;
  for (const int64_t id : list(ids)) all.push_back("t" + std::to_string(id));
  return all;
}
void set_view(View& view, const torch::Tensor& ids) { view = {ids, texts_for(ids)}; }
void set_view(PairView& view, const torch::Tensor& ids) { view = {ids, ids}; }
void set_view(torch::Tensor& view, const torch::Tensor& ids) { view = ids; }
torch::Tensor ids_of(const View& view) { return view.names == texts_for(view.x) ? view.x : torch::Tensor(); }
torch::Tensor ids_of(const PairView& view) { return view.first; }
torch::Tensor ids_of(const torch::Tensor& view) { return view; }

template <typename Views>
Seen<Views> views_of(int64_t first, int64_t rows) {
  Seen<Views> batch{torch::arange(first, first + rows), Views(2)};
  for (auto& view : batch.views) set_view(view, batch.id);
  return batch;
}

/// Joins two views of samples from batches of any sizes: every row of every view must belong to its sample.
template <typename Views>
void check_views() {
  for (const int64_t each : {1, 2, 3, 4})
    for (const int64_t last : {1, 2, 3, 4}) {
      if (last > each) continue;
      const auto front = views_of<Views>(0, each), back = views_of<Views>(each, last);
      for (int64_t own = 0; own <= last; ++own)
        for (int64_t filling = 0; filling <= each; ++filling) {
          std::vector<tree::RowPiece<Seen<Views>>> pieces;
          if (own > 0) pieces.push_back({&back, 0, own});
          if (filling > 0) pieces.push_back({&front, each - filling, filling});
          const auto joined = tree::join_rows(back, pieces);
          CHECK(joined.has_value() == !pieces.empty());
          if (!joined) continue;
          CHECK(joined->id.size(0) == own + filling);
          REQUIRE(joined->views.size() == 2);
          for (const auto& view : joined->views) CHECK(ids_of(view).equal(joined->id));
        }
    }
}

struct Unnamed {
  torch::Tensor id;
  std::vector<std::string> names;
  auto tree_members() { return std::tie(id); }
};

}  // namespace

TEST_CASE("a list inside a batch contains columns, also if it is as long as the batch") {
  check_views<std::vector<torch::Tensor>>();
  check_views<std::vector<View>>();
  check_views<std::vector<PairView>>();
  const Seen<std::array<View, 2>> in_array{torch::arange(2), {View{torch::arange(2), {"a", "b"}}, {}}};
  CHECK(tree::join_rows(in_array, {{&in_array, 1, 1}})->views[0].names == std::vector<std::string>{"b"});
}

TEST_CASE("a part without rows is taken from the batch of the first row") {
  using Named = std::pair<torch::Tensor, std::string>;
  const Named first{torch::arange(2), "first"}, last{torch::arange(2, 4), "last"};
  CHECK(tree::join_rows(last, {{&first, 1, 1}})->second == "first");
  CHECK(tree::join_rows(last, {{&last, 0, 1}, {&first, 0, 1}})->second == "last");
}

TEST_CASE("a list of lists has one list per row, or columns; an ambiguous one is not joined") {
  using Texts = std::pair<torch::Tensor, std::vector<std::vector<std::string>>>;
  const Texts by_row{torch::arange(3), {{"a", "A"}, {"b", "B"}, {"c", "C"}}};
  CHECK(tree::join_rows(by_row, {{&by_row, 1, 2}})->second == Texts::second_type{{"b", "B"}, {"c", "C"}});
  const Texts columns{torch::arange(3), {{"a", "b", "c"}, {"A", "B", "C"}}};
  CHECK(tree::join_rows(columns, {{&columns, 1, 2}})->second == Texts::second_type{{"b", "c"}, {"B", "C"}});
  const Texts either{torch::arange(2), {{"a", "A"}, {"b", "B"}}};
  CHECK(!tree::join_rows(either, {{&either, 1, 1}}));
  CHECK(tree::join_rows(by_row, {{&by_row, 2, 1}, {&either, 0, 1}})->second ==
        Texts::second_type{{"c", "C"}, {"a", "A"}});
  using Columns = std::pair<torch::Tensor, std::array<std::vector<std::string>, 2>>;
  const Columns in_array{torch::arange(2), {{{"a", "b"}, {"A", "B"}}}};
  CHECK(tree::join_rows(in_array, {{&in_array, 1, 1}})->second == Columns::second_type{{{"b"}, {"B"}}});
}

TEST_CASE("parts with sizes that differ between batches, but are not their rows, are not joined") {
  using Packed = std::pair<torch::Tensor, torch::Tensor>;  // samples, and the words of all samples
  const Packed few{torch::arange(2), torch::arange(7)}, many{torch::arange(2), torch::arange(9)};
  CHECK(!tree::join_rows(few, {{&few, 0, 1}, {&many, 0, 1}}));
  CHECK(list(tree::join_rows(few, {{&few, 0, 1}})->second).size() == 7);
  using Targets = std::pair<torch::Tensor, std::vector<std::pair<torch::Tensor, torch::Tensor>>>;  // one per image
  const Targets images{torch::arange(2),
                       {{torch::ones({5, 4}), torch::tensor(1)}, {torch::ones({3, 4}), torch::tensor(2)}}};
  CHECK(!tree::join_rows(images, {{&images, 0, 1}}));
}

TEST_CASE("a struct with members that tree_members() omits is not joined") {
  const Unnamed batch{torch::arange(2), {"a", "b"}};
  CHECK(!tree::join_rows(batch, {{&batch, 0, 1}}));
}
