// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include "accelerate/units/unit_plan.hpp"

using accelerate::units::find_units;
using accelerate::units::UnitItem;
using accelerate::units::UnitOptions;

namespace {

using Units = std::vector<int64_t>;

std::vector<UnitItem> items(const std::vector<std::pair<std::string, int64_t>>& sizes) {
  std::vector<UnitItem> list;
  for (const auto& [name, bytes] : sizes) list.push_back({name, bytes / 4, bytes});
  return list;
}

Units units(const std::vector<std::pair<std::string, int64_t>>& sizes, const UnitOptions& options) {
  return find_units(items(sizes), options);
}

}  // namespace

TEST_CASE("the children of a list are units, and other parameters are packed before and after it") {
  const std::vector<std::pair<std::string, int64_t>> sizes{
      {"tokens.weight", 40}, {"places", 20},        {"blocks.0.qkv", 100}, {"blocks.0.out", 100},
      {"blocks.1.qkv", 100}, {"blocks.1.out", 100}, {"norm.weight", 10},   {"head.weight", 40}};
  CHECK(units(sizes, {.min_bytes = 100}) == Units{0, 0, 1, 1, 2, 2, 3, 3});
  CHECK(units(sizes, {.min_bytes = 30}) == Units{0, 1, 2, 2, 3, 3, 4, 4});
  CHECK(units(sizes, {.min_bytes = 100000}) == Units{0, 0, 0, 0, 0, 0, 0, 0});
  CHECK(units(sizes, {.min_bytes = 1, .min_num_params = 25}) == Units{0, 0, 1, 1, 2, 2, 3, 3});
}

TEST_CASE("a child that has a quarter of the model is divided by the list in it") {
  const std::vector<std::pair<std::string, int64_t>> sizes{{"stages.0.layers.0.w", 100},
                                                           {"stages.0.layers.1.w", 100},
                                                           {"stages.1.layers.0.w", 100},
                                                           {"stages.1.layers.1.w", 100},
                                                           {"stages.0.norm", 10}};
  CHECK(units(sizes, {.min_bytes = 50}) == Units{0, 1, 2, 3, 4});
  CHECK(units(sizes, {.min_bytes = 150}) == Units{0, 0, 1, 1, 0});
}

TEST_CASE("a Sequential is a list, and a parameter that is in a list itself belongs to no child") {
  CHECK(units({{"0.weight", 64}, {"0.bias", 4}, {"2.weight", 64}, {"2.bias", 4}}, {.min_bytes = 10}) ==
        Units{0, 0, 1, 1});
  CHECK(units({{"list.0", 64}, {"list.1", 64}}, {.min_bytes = 1000}) == Units{0, 0});
}

TEST_CASE("names override the search") {
  const std::vector<std::pair<std::string, int64_t>> sizes{
      {"encoder.layers.0.w", 10}, {"encoder.layers.1.w", 10}, {"encoder.norm", 10}, {"decoder.w", 10}, {"rest", 10}};
  CHECK(units(sizes, {.units = {"encoder.layers.*", "decoder"}, .min_bytes = 5}) == Units{0, 1, 2, 3, 4});
  CHECK(units(sizes, {.units = {"encoder"}, .min_bytes = 100}) == Units{0, 0, 0, 1, 1});
  CHECK(units({}, {}).empty());
}
