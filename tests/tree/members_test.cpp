// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <variant>

#include "accelerate/tree/members.hpp"

using accelerate::tree::hides_tensors;
using accelerate::tree::names_all_members;
using at::Tensor;

namespace {

struct Empty {};
struct TwoTensors {
  Tensor x, y;
};

struct AllNamed {
  Tensor a;
  std::vector<std::string> texts;
  std::optional<int> number;
  std::function<void()> function;
  std::map<std::string, Tensor> map;
  std::array<Tensor, 3> array;
  auto tree_members() { return std::tie(a, texts, number, function, map, array); }
};
struct OneNamed {
  Tensor a;
  std::optional<std::vector<std::string>> texts;
  auto tree_members() { return std::tie(a); }
};
struct PlainArray {
  Tensor a;
  int numbers[3];
  auto tree_members() { return std::tie(a, numbers); }
};
struct WithEmptyBase : Empty {
  Tensor a;
  auto tree_members() { return std::tie(a); }
};
struct BaseNamed : TwoTensors {
  Tensor a;
  auto tree_members() { return std::tie(a, x, y); }
};
struct BaseUnnamed : TwoTensors {
  Tensor a;
  auto tree_members() { return std::tie(a, x); }
};
struct MembersOfMember {
  TwoTensors inner;
  Tensor a;
  auto tree_members() { return std::tie(inner.x, inner.y, a); }
};
struct WithConstructor {
  explicit WithConstructor(Tensor first) : a(std::move(first)) {}
  Tensor a, b;
  auto tree_members() { return std::tie(a); }
};

struct NoTensors {
  int a;
  std::string b;
  std::vector<int> c;
  std::optional<std::string> d;
  std::map<int, std::string> e;
  std::function<int()> f;
};
struct Deep {
  int n;
  std::vector<std::optional<TwoTensors>> list;
};
struct Array {
  Tensor pair[2];
};
struct Based : TwoTensors {
  int n;
};
struct ListOfItself {
  std::vector<ListOfItself> children;
};
struct TreeOfTensors {
  std::vector<TreeOfTensors> children;
  Tensor value;
};
struct Cache {
  std::shared_ptr<TwoTensors> kept;
};

}  // namespace

TEST_CASE("members that tree_members() does not name are found in aggregates, at any depth") {
  CHECK(names_all_members<AllNamed>);
  CHECK(names_all_members<PlainArray>);
  CHECK(names_all_members<WithEmptyBase>);
  CHECK(names_all_members<BaseNamed>);
  CHECK(names_all_members<MembersOfMember>);
  CHECK(names_all_members<std::pair<Tensor, std::string>>);
  CHECK_FALSE(names_all_members<OneNamed>);
  CHECK_FALSE(names_all_members<BaseUnnamed>);
  CHECK_FALSE(names_all_members<std::vector<std::pair<Tensor, OneNamed>>>);
  CHECK_FALSE(names_all_members<std::map<int, std::optional<OneNamed>>>);
  CHECK(names_all_members<WithConstructor>);  // unknown, so true
}

TEST_CASE("tensors that a walk does not reach are found in structs without tree_members() and in variants") {
  CHECK(hides_tensors<TwoTensors>);
  CHECK(hides_tensors<Deep>);
  CHECK(hides_tensors<Array>);
  CHECK(hides_tensors<Based>);
  CHECK(hides_tensors<TreeOfTensors>);
  CHECK(hides_tensors<std::pair<Tensor, TwoTensors>>);
  CHECK(hides_tensors<std::variant<int, Tensor>>);
  CHECK_FALSE(hides_tensors<NoTensors>);
  CHECK_FALSE(hides_tensors<ListOfItself>);
  CHECK_FALSE(hides_tensors<Cache>);
  CHECK_FALSE(hides_tensors<std::variant<int, std::string>>);
  CHECK_FALSE(hides_tensors<AllNamed>);
  CHECK_FALSE(hides_tensors<std::tuple<Tensor, std::vector<Tensor>, std::string>>);
  CHECK_FALSE(hides_tensors<std::string>);
  CHECK_FALSE(hides_tensors<int>);
}
