// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

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
struct OneOfTwoByConstructor {
  explicit OneOfTwoByConstructor(Tensor first) : a(std::move(first)) {}
  Tensor a, b;
  auto tree_members() { return std::tie(a); }
};
struct AllByConstructor {
  explicit AllByConstructor(Tensor first) : a(std::move(first)) {}
  bool flag = false;
  Tensor a;
  int number = 0;
  std::optional<Tensor> b;
  auto tree_members() { return std::tie(a, b, number, flag); }
};
class WithPrivateMember {
 public:
  Tensor a;
  auto tree_members() { return std::tie(a); }
  [[nodiscard]] const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::vector<std::string> texts_;
};
class OneTensorBesideNumber {
 public:
  auto tree_members() { return std::tie(number_); }

 private:
  int number_ = 0;
  Tensor unnamed_;
};
struct Nothing {
  Nothing() = default;
  explicit Nothing(int) {}
  auto tree_members() { return std::tie(); }
};
class AllPrivate {
 public:
  auto tree_members() { return std::tie(a_, n_); }

 private:
  Tensor a_;
  int n_ = 0;
};
struct WithVirtual {
  virtual ~WithVirtual() = default;
  Tensor a;
  auto tree_members() { return std::tie(a); }
};
struct OneOfTwoWithVirtual {
  virtual ~OneOfTwoWithVirtual() = default;
  Tensor a, b;
  auto tree_members() { return std::tie(a); }
};
struct DerivedOfNamed : AllByConstructor {
  DerivedOfNamed() : AllByConstructor(Tensor()) {}
  Tensor c;  // tree_members() of the base does not list it
};
struct SmallMembers {
  SmallMembers() = default;
  explicit SmallMembers(Tensor tensor) : a(std::move(tensor)) {}
  char first = 0;
  Tensor a;
  char second = 0;
  char unnamed = 0;  // fits in the padding
  auto tree_members() { return std::tie(first, a, second); }
};
struct OptionalAndTensor {
  std::optional<Tensor> mask;
  Tensor x;
};
struct OptionalUnnamed {
  std::optional<Tensor> mask;
  Tensor x;
  auto tree_members() { return std::tie(x); }
};
struct OptionalNamed {
  std::optional<Tensor> mask;
  Tensor x;
  auto tree_members() { return std::tie(x, mask); }
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

TEST_CASE("members that tree_members() omits are found in aggregates, at any depth") {
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
  CHECK(names_all_members<OptionalNamed>);
  CHECK_FALSE(names_all_members<OptionalUnnamed>);
}

TEST_CASE("members that tree_members() omits are found by size if they cannot be counted") {
  CHECK(names_all_members<AllByConstructor>);
  CHECK(names_all_members<AllPrivate>);
  CHECK(names_all_members<WithVirtual>);
  CHECK(names_all_members<Nothing>);
  CHECK(names_all_members<SmallMembers>);  // too small to be found
  CHECK_FALSE(names_all_members<OneOfTwoByConstructor>);
  CHECK_FALSE(names_all_members<WithPrivateMember>);
  CHECK_FALSE(names_all_members<OneTensorBesideNumber>);
  CHECK_FALSE(names_all_members<OneOfTwoWithVirtual>);
  CHECK_FALSE(names_all_members<std::vector<DerivedOfNamed>>);
}

TEST_CASE("unreachable tensors are found in structs without tree_members() and in variants") {
  CHECK(hides_tensors<TwoTensors>);
  CHECK(hides_tensors<Deep>);
  CHECK(hides_tensors<Array>);
  CHECK(hides_tensors<Based>);
  CHECK(hides_tensors<TreeOfTensors>);
  CHECK(hides_tensors<OptionalAndTensor>);
  CHECK(hides_tensors<std::vector<OptionalAndTensor>>);
  CHECK(hides_tensors<std::pair<Tensor, TwoTensors>>);
  CHECK(hides_tensors<std::variant<int, Tensor>>);
  CHECK_FALSE(hides_tensors<NoTensors>);
  CHECK_FALSE(hides_tensors<ListOfItself>);
  CHECK_FALSE(hides_tensors<Cache>);
  CHECK_FALSE(hides_tensors<std::variant<int, std::string>>);
  CHECK_FALSE(hides_tensors<AllNamed>);
  CHECK_FALSE(hides_tensors<OptionalNamed>);
  CHECK_FALSE(hides_tensors<std::tuple<Tensor, std::vector<Tensor>, std::string>>);
  CHECK_FALSE(hides_tensors<std::string>);
  CHECK_FALSE(hides_tensors<int>);
}
