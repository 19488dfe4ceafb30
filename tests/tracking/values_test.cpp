// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tracking/values.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "accelerate/tracking/text.hpp"

using namespace accelerate::tracking;

namespace {

struct OneElement {
  template <typename T>
  [[nodiscard]] T item() const {
    return static_cast<T>(2.5);
  }
};

}  // namespace

TEST_CASE("values are numbers, texts, groups and tensors of one element") {
  CHECK(plain_text(Value(true)) == "true");
  CHECK(plain_text(Value(7)) == "7");
  CHECK(plain_text(Value(size_t{7})) == "7");
  CHECK(plain_text(Value(0.1)) == "0.1");
  CHECK(plain_text(Value(0.5F)) == "0.5");
  CHECK(plain_text(Value(std::string_view("text"))) == "text");
  CHECK(plain_text(Value(OneElement())) == "2.5");
  CHECK(number_of(Value(true)) == 1.0);
  CHECK(number_of(Value(-3)) == -3.0);
  CHECK_FALSE(number_of(Value("1")).has_value());
  CHECK(flattened({{"a", 1}, {"b", Value::Group{{"x", 2}, {"y", 3}}}}) == Values{{"a", 1}, {"b/x", 2.0}, {"b/y", 3.0}});
}

TEST_CASE("a histogram counts every number once in its bucket") {
  const std::vector<double> numbers{-1e30, -2.0, -0.5, 0.0, 1e-13, 0.5, 0.5, 3.0, 1e30};
  const auto made = histogram_of(numbers);
  CHECK(made.lowest == -1e30);
  CHECK(made.highest == 1e30);
  CHECK(made.count == 9);
  CHECK(made.sum == doctest::Approx(std::accumulate(numbers.begin(), numbers.end(), 0.0)));
  REQUIRE(made.limits.size() == made.counts.size());
  CHECK(std::is_sorted(made.limits.begin(), made.limits.end()));
  CHECK(std::accumulate(made.counts.begin(), made.counts.end(), 0.0) == 9);
  double lower = -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < made.limits.size(); ++i) {
    const double upper = i + 1 == made.limits.size() ? std::numeric_limits<double>::infinity() : made.limits[i];
    const auto within =
        std::count_if(numbers.begin(), numbers.end(), [&](double x) { return x >= lower && x < upper; });
    CHECK(made.counts[i] == static_cast<double>(within));
    lower = upper;
  }
}

TEST_CASE("a histogram excludes infinities and NaNs, and is empty without other values") {
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(histogram_of(std::vector{infinity, -infinity, std::nan(""), 1.0}).count == 1);
  CHECK(histogram_of(std::vector{infinity}).limits.empty());
  CHECK(histogram_of({}).count == 0);
}
