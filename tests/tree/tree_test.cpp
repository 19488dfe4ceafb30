// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <array>
#include <deque>
#include <map>
#include <string>
#include <unordered_map>

#include "accelerate/data/batch.hpp"
#include "accelerate/tree/tree.hpp"

namespace tree = accelerate::tree;

namespace user {

struct Sample {
  at::Tensor image;
  at::Tensor label;
  std::string name;
};
auto tree_members(Sample& sample) { return std::tie(sample.image, sample.label, sample.name); }

struct Boxes {
  std::vector<at::Tensor> corners;
  auto tree_members() { return std::tie(corners); }
};

}  // namespace user

namespace {

at::Tensor t(double value) { return torch::full({2}, value); }

std::vector<double> firsts(const std::vector<at::Tensor>& tensors) {
  std::vector<double> values;
  for (const auto& tensor : tensors) values.push_back(tensor.flatten()[0].item<double>());
  return values;
}

template <typename T>
std::vector<double> seen(const T& value) {
  return firsts(tree::flatten(value));
}

using Values = std::vector<double>;

}  // namespace

TEST_CASE("tensors are found in every container, in order, and in structs with tree_members()") {
  CHECK(seen(t(1)) == Values{1});
  CHECK(seen(std::pair{t(1), t(2)}) == Values{1, 2});
  CHECK(seen(std::tuple{t(1), 5, std::string("five"), t(2)}) == Values{1, 2});
  CHECK(seen(std::vector{t(1), t(2)}) == Values{1, 2});
  CHECK(seen(std::array{t(1), t(2)}) == Values{1, 2});
  CHECK(seen(std::deque{t(3)}) == Values{3});
  CHECK(seen(std::map<std::string, at::Tensor>{{"b", t(2)}, {"a", t(1)}}) == Values{1, 2});
  CHECK(seen(std::optional{t(1)}) == Values{1});
  CHECK(seen(std::optional<at::Tensor>{}).empty());
  CHECK(seen(user::Sample{t(1), t(2), "cat"}) == Values{1, 2});
  CHECK(seen(user::Boxes{{t(1), t(2)}}) == Values{1, 2});
  CHECK(seen(accelerate::data::Batch{t(1), t(2)}) == Values{1, 2});
  const std::map<std::string, std::vector<user::Sample>> deep{{"x", {{t(1), t(2), ""}, {t(3), t(4), ""}}}};
  CHECK(seen(deep) == Values{1, 2, 3, 4});
}

TEST_CASE("a hash map is visited by key, so ranks agree for any order of insertion") {
  std::unordered_map<std::string, at::Tensor> one, other;
  for (int i = 0; i < 50; ++i) one["key" + std::to_string(i)] = t(i);
  for (int i = 49; i >= 0; --i) other["key" + std::to_string(i)] = t(i);
  CHECK(seen(one) == seen(other));
  CHECK(seen(one)[1] == 1);
  CHECK(seen(one)[2] == 10);
}

TEST_CASE("undefined tensors are skipped and stay undefined") {
  const accelerate::data::Batch batch{t(1), {}};
  CHECK(tree::flatten(batch).size() == 1);
  const auto doubled = tree::map(batch, [](const at::Tensor& x) { return x * 2; });
  CHECK(doubled.data[0].item<double>() == 2);
  CHECK(!doubled.target.defined());
}

TEST_CASE("map keeps type and structure, copies the rest and does not change its input") {
  const user::Sample sample{t(1), t(2), "cat"};
  const user::Sample twice = tree::map(sample, [](const at::Tensor& x) { return x * 2; });
  CHECK(seen(twice) == Values{2, 4});
  CHECK(twice.name == "cat");
  CHECK(seen(sample) == Values{1, 2});

  const std::tuple<int, at::Tensor, std::vector<std::string>> mixed{7, t(3), {"a"}};
  const auto same = tree::map(mixed, [](const at::Tensor& x) { return x + 1; });
  CHECK(std::get<0>(same) == 7);
  CHECK(seen(same) == Values{4});
  CHECK(std::get<2>(same) == std::vector<std::string>{"a"});
}

TEST_CASE("the content of a type is known at compile time") {
  static_assert(tree::holds_tensors<std::pair<int, std::vector<at::Tensor>>>);
  static_assert(tree::holds_tensors<user::Sample&>);
  static_assert(!tree::holds_tensors<std::map<std::string, std::string>>);
  static_assert(!tree::holds_tensors<std::string>);
  static_assert(!tree::holds_tensors<at::Tensor*>);
  static_assert(tree::only_tensors<std::map<std::string, std::pair<at::Tensor, at::Tensor>>>);
  static_assert(tree::only_tensors<accelerate::data::Batch>);
  static_assert(!tree::only_tensors<user::Sample>);
  static_assert(!tree::only_tensors<std::pair<at::Tensor, int>>);
  CHECK(true);
}

TEST_CASE("concat joins tensor by tensor along the first dimension, or another") {
  using Pair = std::pair<at::Tensor, std::map<std::string, at::Tensor>>;
  const Pair a{torch::zeros({2, 3}), {{"y", torch::tensor(1)}}};
  const Pair b{torch::ones({1, 3}), {{"y", torch::tensor({2, 3})}}};
  const Pair joined = tree::concat(std::vector{a, b});
  CHECK(joined.first.equal(torch::cat({a.first, b.first})));
  CHECK(joined.second.at("y").equal(torch::tensor({1, 2, 3})));
  CHECK(tree::concat(std::vector{torch::zeros({2, 1}), torch::zeros({2, 4})}, -1).sizes() == at::IntArrayRef{2, 5});
}

TEST_CASE("concat of one value is that value") {
  const auto only = torch::tensor(4);
  CHECK(tree::concat(std::vector{only}).is_same(only));
}

TEST_CASE("concat refuses no values, different structures and different shapes, with both") {
  CHECK_THROWS_WITH((void)tree::concat(std::vector<at::Tensor>{}), "concat: 0 values, must be at least 1");
  using List = std::vector<at::Tensor>;
  CHECK_THROWS_WITH((void)tree::concat(std::vector<List>{{t(1), t(2)}, {t(1), t(2)}, {t(1)}}),
                    "concat: value 0 holds 2 tensors, value 2 holds 1; structures must be equal");
  CHECK_THROWS_WITH((void)tree::concat(std::vector<List>{{t(1), torch::zeros({2, 3})}, {t(1), torch::zeros({2, 4})}}),
                    "concat: tensor 1 is [2, 3] in value 0, [2, 4] in value 1; only dimension 0 may differ");
  CHECK_THROWS_WITH((void)tree::concat(std::vector{torch::zeros({2}), torch::zeros({2, 1})}),
                    "concat: tensor 0 is [2] in value 0, [2, 1] in value 1; only dimension 0 may differ");
  CHECK_THROWS_WITH((void)tree::concat(std::vector{torch::zeros({2}), torch::zeros({2})}, 1),
                    "concat: tensor 0 is [2] in value 0, [2] in value 0; only dimension 1 may differ");
}

TEST_CASE("slice_rows slices every tensor's rows and stops at their end") {
  const auto batch = std::tuple{torch::arange(5), torch::arange(3), torch::tensor(7), std::string("name")};
  const auto rows = tree::slice_rows(batch, 2, 2);
  CHECK(std::get<0>(rows).equal(torch::tensor({2, 3})));
  CHECK(std::get<1>(rows).equal(torch::tensor({2})));
  CHECK(std::get<2>(rows).item<int64_t>() == 7);
  CHECK(tree::slice_rows(torch::arange(3), 9, 2).numel() == 0);
  CHECK_THROWS_WITH((void)tree::slice_rows(torch::arange(3), -1, 2),
                    "slice_rows: first is -1 and count 2, both must be at least 0");
}

TEST_CASE("batch_size and device are those of the first tensor that has one") {
  CHECK(tree::batch_size(std::pair{torch::tensor(1), torch::zeros({4, 2})}) == 4);
  CHECK(tree::batch_size(torch::tensor(1)) == std::nullopt);
  CHECK(tree::device(std::tuple{1, std::string("a"), torch::zeros(2, torch::kMeta), t(1)}) == at::Device("meta"));
  CHECK(tree::device(std::vector<at::Tensor>{}) == std::nullopt);
}

TEST_CASE("to() moves tensors from other devices and keeps the others") {
  const std::pair<at::Tensor, std::string> value{t(1), "a"};
  CHECK(tree::to(value, at::kCPU).first.is_same(value.first));
  const auto moved = tree::to(value, at::Device("meta"));
  CHECK(moved.first.is_meta());
  CHECK(moved.second == "a");
}

TEST_CASE("rebuild restores tensors in flatten's order and refuses another number") {
  const user::Sample like{t(1), t(2), "cat"};
  const std::vector<at::Tensor> two{t(8), t(9)};
  CHECK(seen(tree::rebuild(like, two)) == Values{8, 9});
  const std::vector<at::Tensor> one{t(8)};
  CHECK_THROWS_WITH((void)tree::rebuild(like, one), "rebuild: 1 tensors given, the structure holds 2");
}
