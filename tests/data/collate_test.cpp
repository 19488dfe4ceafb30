// SPDX-License-Identifier: Apache-2.0
#include "tests/data/support.hpp"
//
#include "accelerate/data/collate.hpp"
#include "accelerate/data/sample.hpp"

using namespace accelerate::data;
using sources::index;
using sources::list;
using Strings = std::vector<std::string>;

namespace {

struct Image {
  at::Tensor pixels, mask;
};
auto tree_members(Image& image) { return std::tie(image.pixels, image.mask); }

struct Labelled {
  at::Tensor pixels;
  int64_t label;
  std::string name;
  auto tree_members() { return std::tie(pixels, label, name); }
};

template <typename T>
bool is(const at::Tensor& tensor, const std::vector<T>& values) {
  const auto expected = torch::tensor(values, c10::CppTypeToScalarType<T>::value);
  return tensor.dtype() == expected.dtype() && tensor.equal(expected);
}

}  // namespace

// The expected values are from torch.utils.data.default_collate.
TEST_CASE("numbers become tensors of PyTorch's dtypes, strings stay strings") {
  CHECK(is<int64_t>(default_collate(std::vector<int>{1, 2, 3}), {1, 2, 3}));
  CHECK(is<int64_t>(default_collate(std::vector<uint8_t>{1, 255}), {1, 255}));
  CHECK(is<double>(default_collate(std::vector<double>{1.5, 2.0}), {1.5, 2.0}));
  CHECK(is<float>(default_collate(std::vector<float>{1.5F, 2.0F}), {1.5F, 2.0F}));
  CHECK(default_collate(std::vector<bool>{true, false}).equal(torch::tensor({true, false})));
  CHECK(default_collate(Strings{"a", "b"}) == Strings{"a", "b"});
  CHECK(default_collate(std::vector<const char*>{"a"}) == Strings{"a"});
}

TEST_CASE("tensors are stacked in the promoted dtype") {
  const auto batch = default_collate(std::vector{torch::zeros({2, 3}), torch::ones({2, 3})});
  CHECK(batch.equal(torch::stack({torch::zeros({2, 3}), torch::ones({2, 3})})));
  CHECK((default_collate(std::vector{torch::zeros(2), torch::zeros(2, torch::kDouble)}).dtype() == torch::kDouble));
  CHECK(is<int64_t>(default_collate(std::vector{torch::tensor(4), torch::tensor(5)}), {4, 5}));
  CHECK_FALSE(default_collate(std::vector<at::Tensor>(2)).defined());
}

TEST_CASE("pairs, tuples, maps, structs and optionals are collated member by member") {
  const auto pair = default_collate(std::vector<std::pair<std::string, int>>{{"a", 1}, {"b", 2}});
  CHECK(pair.first == Strings{"a", "b"});
  CHECK(is<int64_t>(pair.second, {1, 2}));

  const auto [x, y, z] = default_collate(std::vector{std::tuple(torch::zeros(2), true, 1.0F)});
  CHECK(x.sizes() == at::IntArrayRef{1, 2});
  CHECK(y.equal(torch::tensor({true})));
  CHECK(is<float>(z, {1.0F}));

  using Map = std::map<std::string, double>;
  const auto map = default_collate(std::vector<Map>{{{"x", 1.0}, {"y", 5.0}}, {{"x", 2.0}, {"y", 6.0}}});
  CHECK(map.size() == 2);
  CHECK(is<double>(map.at("x"), {1.0, 2.0}));
  CHECK(is<double>(map.at("y"), {5.0, 6.0}));
  const auto hashed = default_collate(std::vector<std::unordered_map<int, std::string>>{{{4, "a"}}, {{4, "b"}}});
  CHECK(hashed.at(4) == Strings{"a", "b"});

  const Image images = default_collate(std::vector<Image>{{torch::zeros(3), {}}, {torch::ones(3), {}}});
  CHECK(images.pixels.sizes() == at::IntArrayRef{2, 3});
  CHECK_FALSE(images.mask.defined());
  const auto [pixels, label, name] = default_collate(std::vector<Labelled>{{torch::zeros(3), 7, "a"}});
  CHECK(pixels.sizes() == at::IntArrayRef{1, 3});
  CHECK(is<int64_t>(label, {7}));
  CHECK(name == Strings{"a"});

  CHECK(is<int64_t>(*default_collate(std::vector<std::optional<int>>{1, 2}), {1, 2}));
  CHECK_FALSE(default_collate(std::vector<std::optional<int>>(2)).has_value());
}

TEST_CASE("vectors are collated item by item; vectors of numbers are one row, as NumPy's arrays are") {
  const auto columns = default_collate(
      std::vector<std::vector<at::Tensor>>{{torch::tensor(1), torch::zeros(2)}, {torch::tensor(3), torch::ones(2)}});
  REQUIRE(columns.size() == 2);
  CHECK(is<int64_t>(columns[0], {1, 3}));
  CHECK(columns[1].sizes() == at::IntArrayRef{2, 2});
  const auto words = default_collate(std::vector<Strings>{{"a", "b"}, {"c", "d"}});
  CHECK(words == std::vector<Strings>{{"a", "c"}, {"b", "d"}});

  const auto rows = default_collate(std::vector<std::vector<float>>{{1, 2}, {3, 4}});
  CHECK(rows.equal(torch::tensor({{1.0F, 2.0F}, {3.0F, 4.0F}})));
  CHECK((default_collate(std::vector<std::vector<uint8_t>>{{1}}).dtype() == torch::kUInt8));
  CHECK((default_collate(std::vector<std::vector<int8_t>>{{1}}).dtype() == torch::kInt8));
  CHECK((default_collate(std::vector<std::vector<int16_t>>{{1}}).dtype() == torch::kInt16));
  CHECK((default_collate(std::vector<std::vector<int32_t>>{{1}}).dtype() == torch::kInt32));
  CHECK((default_collate(std::vector<std::vector<uint32_t>>{{1}}).dtype() == torch::kInt64));
  CHECK((default_collate(std::vector<std::array<double, 2>>{{1, 2}}).dtype() == torch::kFloat64));
  CHECK(default_collate(std::vector<std::vector<bool>>{{true, false}}).equal(torch::tensor({{true, false}})));
}

TEST_CASE("samples with different shapes are refused with both shapes") {
  const std::vector<int64_t> numbers{4, 9};
  const auto collate = [&](auto samples) { (void)default_collate(samples, numbers); };
  CHECK_THROWS_WITH(collate(std::vector{torch::zeros({3, 5}), torch::zeros({3, 4})}),
                    "collate: sample 9 is [3, 4], sample 4 is [3, 5]; all must have one shape; pad_collate pads a "
                    "first dimension that differs");
  CHECK_THROWS_WITH((void)default_collate(std::vector{torch::zeros(2), at::Tensor()}),
                    "collate: sample 1 is undefined, sample 0 is [2]; all must have one shape; pad_collate pads a "
                    "first dimension that differs");
  using Nested = std::map<std::string, std::pair<int, std::vector<float>>>;
  CHECK_THROWS_WITH(collate(std::vector<Nested>{{{"a", {1, {1}}}}, {{"a", {1, {}}}}}),
                    "collate: sample 9 is [0] at [\"a\"][1], sample 4 is [1]; all must have one shape; pad_collate "
                    "pads a first dimension that differs");
  using Map = std::map<std::string, int>;
  CHECK_THROWS_WITH(collate(std::vector<Map>{{{"a", 1}}, {{"b", 1}}}),
                    "collate: sample 9 has no [\"a\"], sample 4 has; all must have the same keys");
  CHECK_THROWS_WITH(collate(std::vector<Map>{{{"a", 1}}, {{"a", 1}, {"b", 1}}}),
                    "collate: sample 9 has 2 keys, sample 4 has 1; all must have as many");
  CHECK_THROWS_WITH(collate(std::vector<std::pair<int, Strings>>{{1, {"a"}}, {2, {}}}),
                    "collate: sample 9 has 0 items at [1], sample 4 has 1; all must have as many");
  CHECK_THROWS_WITH(collate(std::vector<std::optional<int>>{1, {}}),
                    "collate: sample 9 has no value, sample 4 has one; all must, or none");
  CHECK_THROWS_WITH(collate(std::vector<std::optional<int>>{{}, 1}),
                    "collate: sample 9 has a value, sample 4 has none; all must, or none");
  CHECK_THROWS_WITH(collate(std::vector<int>()), "collate: there are 0 samples, must be at least 1");
}

TEST_CASE("padding extends first dimensions to the batch's longest") {
  using Sample = std::tuple<std::vector<int64_t>, at::Tensor, int>;
  const std::vector<Sample> samples{{{1, 2, 3}, torch::ones({1, 2}), 5}, {{4}, torch::ones({2, 2}), 6}};
  const auto [tokens, boxes, label] = pad_collate(-100)(samples);
  CHECK(tokens.equal(torch::tensor({{1, 2, 3}, {4, -100, -100}})));
  CHECK(boxes[0].equal(torch::tensor({{1.0F, 1.0F}, {-100.0F, -100.0F}})));
  CHECK(boxes[1].equal(torch::ones({2, 2})));
  CHECK(is<int64_t>(label, {5, 6}));
  // PyTorch's pad_sequence([[1., 2.], [3.]], batch_first=True)
  CHECK(pad_collate()(std::vector{torch::tensor({1.0, 2.0}), torch::tensor({3.0})})
            .equal(torch::tensor({{1.0, 2.0}, {3.0, 0.0}})));
  CHECK((pad_collate()(std::vector{torch::zeros(1), torch::zeros(2, torch::kDouble)}).dtype() == torch::kDouble));
  CHECK(is<int64_t>(pad_collate()(std::vector{torch::tensor(1), torch::tensor(2)}), {1, 2}));
  CHECK(pad_collate(1)(std::vector<std::vector<bool>>{{false, false}, {false}})
            .equal(torch::tensor({{false, false}, {false, true}})));
}

TEST_CASE("the mask marks valid positions beside padding") {
  const std::vector<std::pair<int, std::vector<int64_t>>> samples{{7, {1, 2, 3}}, {8, {4}}, {9, {}}};
  auto [batch, mask] = pad_collate_with_mask()(samples);
  CHECK(batch.second.equal(torch::tensor({{1, 2, 3}, {4, 0, 0}, {0, 0, 0}})));
  CHECK(mask.equal(torch::tensor({{true, true, true}, {true, false, false}, {false, false, false}})));
  const auto even = pad_collate_with_mask()(std::vector<std::vector<int64_t>>{{1, 2}, {3, 4}});
  CHECK(even.mask.equal(torch::ones({2, 2}, torch::kBool)));
  CHECK(accelerate::tree::flatten(even).size() == 2);
  CHECK_THROWS_WITH((void)pad_collate_with_mask()(std::vector<int>{1, 2}),
                    "pad_collate_with_mask: no leaf of the samples has a first dimension, so there is nothing to mask; "
                    "use pad_collate");
}

TEST_CASE("padding extends only the first dimension") {
  const std::vector<int64_t> numbers{4, 9};
  CHECK_THROWS_WITH((void)pad_collate(0)(std::vector{torch::zeros({3, 5}), torch::zeros({3, 4})}, numbers),
                    "collate: sample 9 is [3, 4], sample 4 is [3, 5]; only the first dimension may differ");
  CHECK_THROWS_WITH((void)pad_collate(0)(std::vector{torch::zeros({3, 5}), torch::zeros(3)}, numbers),
                    "collate: sample 9 is [3], sample 4 is [3, 5]; only the first dimension may differ");
}

TEST_CASE("a sample of a batch equals the collated one") {
  const Image images{torch::arange(6).view({2, 3}), torch::tensor(4)};
  const Image second = sample_of(images, 1, 2);
  CHECK(list(second.pixels) == std::vector<int64_t>{3, 4, 5});
  CHECK(second.mask.equal(torch::tensor(4)));  // has no first dimension

  struct Named {
    at::Tensor pixels;
    Strings names;
    auto tree_members() { return std::tie(pixels, names); }
  };
  const auto [pixels, name] = sample_of(Named{torch::tensor({5, 6}), {"a", "b"}}, 1, 2);
  CHECK(pixels.item<int64_t>() == 6);
  CHECK(name == "b");

  using Tree = std::pair<std::map<std::string, at::Tensor>, std::vector<at::Tensor>>;
  const auto nested = sample_of(Tree{{{"x", torch::tensor({1, 2})}}, {torch::tensor({3, 4})}}, 0, 2);
  CHECK(nested.first.at("x").item<int64_t>() == 1);
  CHECK(nested.second.at(0).item<int64_t>() == 3);
  CHECK(sample_of(std::vector<Image>{images, second}, 1, 2).pixels.equal(second.pixels));
  CHECK(sample_of(std::optional(torch::tensor({1, 2})), 1, 2)->item<int64_t>() == 2);
  CHECK(std::get<1>(sample_of(std::tuple(torch::tensor({1, 2}), 7), 1, 2)) == 7);
  CHECK_THROWS_WITH((void)sample_of(std::pair(torch::zeros(2), Strings{"a"}), 0, 2),
                    "sample: a list of the batch has 1 items, the batch 2 samples; must be one each");
}
