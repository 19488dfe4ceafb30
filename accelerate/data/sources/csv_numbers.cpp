// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/sources/csv_numbers.hpp"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <type_traits>

namespace accelerate::data {
namespace {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view spaces = " \t";
  text.remove_prefix(std::min(text.find_first_not_of(spaces), text.size()));
  return text.substr(0, text.find_last_not_of(spaces) + 1);
}

bool is_missing(std::string_view text) {
  if (text.empty() || text == "NA") return true;
  return text.size() == 3 && (text[0] | 32) == 'n' && (text[1] | 32) == 'a' && (text[2] | 32) == 'n';
}

// from_chars returns "out of range" for both; a number too small to represent is 0.
bool is_tiny(std::string_view text) {
  double number = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), number).ec == std::errc()) return std::abs(number) < 1;
  const auto exponent = text.find_first_of("eE");
  if (exponent != std::string_view::npos) return text.substr(exponent + 1).starts_with('-');
  return text.find_first_of("0.") <= (text.starts_with('-') ? 1 : 0);
}

// Returns "3" for "3.0": pandas writes integers this way if a value of their column is missing.
std::string_view without_zero_fraction(std::string_view text) {
  const auto point = text.find('.');
  if (point == std::string_view::npos || text.find_first_not_of('0', point + 1) != std::string_view::npos) return text;
  return text.substr(0, point);
}

template <typename Number>
bool parse_number(std::string_view text, Number& number) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  if constexpr (std::is_integral_v<Number>) text = without_zero_fraction(text);
  const char* const first = text.data();
  const char* const last = first + text.size();
  const auto [end, problem] = std::from_chars(first, last, number);
  if (end != last || problem == std::errc::invalid_argument) return false;
  if constexpr (std::is_floating_point_v<Number>) {
    if (problem == std::errc::result_out_of_range && is_tiny(text)) {
      number = 0;
      return true;
    }
    if (std::isnan(number)) return false;  // nan(...) and -nan
  }
  return problem == std::errc();
}

std::variant<std::vector<float>, std::vector<double>, std::vector<int64_t>> no_numbers(at::ScalarType dtype) {
  if (dtype == at::kFloat) return std::vector<float>();
  if (dtype == at::kDouble) return std::vector<double>();
  return std::vector<int64_t>();
}

}  // namespace

CsvNumbers::CsvNumbers(at::ScalarType dtype, std::optional<double> fill) : values_(no_numbers(dtype)), fill_(fill) {}

CsvNumbers::AttemptResult CsvNumbers::take(std::string_view text) {
  text = trimmed(text);
  return std::visit(
      [&]<typename Number>(std::vector<Number>& values) {
        Number number{};
        if (is_missing(text)) {
          if (!fill_) return AttemptResult::missing;
          number = static_cast<Number>(*fill_);
        } else if (!parse_number(text, number)) {
          return AttemptResult::no_number;
        }
        values.push_back(number);
        return AttemptResult::taken;
      },
      values_);
}

size_t CsvNumbers::size() const {
  return std::visit([](const auto& values) { return values.size(); }, values_);
}

void CsvNumbers::cut(size_t size) {
  std::visit([=](auto& values) { values.resize(size); }, values_);
}

at::Tensor CsvNumbers::tensor(at::IntArrayRef shape) {
  return std::visit(
      [&]<typename Number>(std::vector<Number>& values) {
        const auto kept = std::make_shared<std::vector<Number>>(std::move(values));
        return at::from_blob(
            kept->data(), shape, [kept](void*) {}, at::TensorOptions().dtype(c10::CppTypeToScalarType<Number>::value));
      },
      values_);
}

}  // namespace accelerate::data
