// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/sources/csv_columns.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <variant>

#include "accelerate/base/error.hpp"
#include "accelerate/data/memory.hpp"
#include "accelerate/data/sources/csv_classes.hpp"
#include "accelerate/data/sources/csv_lines.hpp"
#include "accelerate/data/sources/csv_numbers.hpp"

namespace accelerate::data {
namespace {

bool is_number(CsvType type) { return type != CsvType::category && type != CsvType::text; }

at::ScalarType dtype_of_column(CsvType type) {
  if (type == CsvType::float32) return at::kFloat;
  return type == CsvType::float64 ? at::kDouble : at::kLong;
}

std::string_view type_name(CsvType type) {
  constexpr std::string_view names[] = {"float32", "float64", "int64", "category", "text"};
  return names[static_cast<size_t>(type)];
}

void check_column(const CsvColumn& column) {
  const auto name = quote_for_terminal(column.name);
  if (column.fill && !is_number(column.type))
    base::fail(ErrorKind::usage, {}, kCsvOperation, "column {}: fill is {}, but its type is {}; fill is for numbers",
               name, *column.fill, type_name(column.type));
  if (column.fill && !can_fill(dtype_of_column(column.type), *column.fill))
    base::fail(ErrorKind::usage, {}, kCsvOperation, "column {}: fill is {}, must be an int64, as its type is", name,
               *column.fill);
  if (!column.categories.empty() && column.type != CsvType::category)
    base::fail(ErrorKind::usage, {}, kCsvOperation,
               "column {}: {} categories are given, but its type is {}; make it CsvType::category", name,
               column.categories.size(), type_name(column.type));
  for (auto one = column.categories.begin(); one != column.categories.end(); ++one)
    if (std::find(one + 1, column.categories.end(), *one) != column.categories.end())
      base::fail(ErrorKind::usage, {}, kCsvOperation, "column {}: categories has {} more than once", name,
                 quote_for_terminal(*one));
}

void check_column_options(const CsvColumnOptions& csv) {
  check_delimiter(csv.delimiter);
  if (csv.columns.empty())
    base::fail(ErrorKind::usage, {}, kCsvOperation, "columns has 0 columns, must have at least 1");
  for (auto column = csv.columns.begin(); column != csv.columns.end(); ++column) {
    check_column(*column);
    if (std::any_of(column + 1, csv.columns.end(), [&](const auto& other) { return other.name == column->name; }))
      base::fail(ErrorKind::usage, {}, kCsvOperation, "columns has {} more than once",
                 quote_for_terminal(column->name));
  }
}

/// Reads one column.
class ColumnReader {
 public:
  ColumnReader(const CsvColumn& column, const CsvLines& lines)
      : column_(column), lines_(lines), index_(lines.find_column(column.name)), values_(values_for(column)) {}

  /// Stores numbers and checks names. \returns the error, or "".
  std::string look(const CsvLines::Fields& fields) {
    const CsvField& field = fields[index_];
    if (auto* numbers = std::get_if<CsvNumbers>(&values_)) return take_number(*numbers, field);
    const auto* names = std::get_if<CsvClasses>(&values_);
    if (names == nullptr) return {};
    if (field.empty())
      return fmt::format("{} expected the name of a category, found nothing; CsvType::text accepts it, too",
                         lines_.place(index_));
    if (names->accepts(unescaped(field))) return {};
    return fmt::format("{} expected one of {}, found {}; CsvColumn::categories lists them", lines_.place(index_),
                       listed_names(names->names()), quote_for_terminal(unescaped(field)));
  }

  /// Stores non-numeric fields after the whole line has been validated.
  void take(const CsvLines::Fields& fields) {
    if (auto* names = std::get_if<CsvClasses>(&values_)) (void)names->take(unescaped(fields[index_]));
    if (auto* texts = std::get_if<Texts>(&values_)) texts->push_back(unescaped(fields[index_]));
  }

  void forget(size_t kept) {
    if (auto* numbers = std::get_if<CsvNumbers>(&values_)) numbers->cut(std::min(kept, numbers->size()));
  }

  void move_into(CsvTable& table) {
    if (auto* numbers = std::get_if<CsvNumbers>(&values_))
      table.columns.numbers[column_.name] = numbers->tensor({lines_.kept()});
    if (auto* texts = std::get_if<Texts>(&values_)) table.columns.texts[column_.name] = std::move(*texts);
    if (const auto* names = std::get_if<CsvClasses>(&values_)) {
      table.columns.numbers[column_.name] = names->tensor();
      table.categories[column_.name] = names->names();
    }
  }

 private:
  using Texts = std::vector<std::string>;
  using Values = std::variant<CsvNumbers, CsvClasses, Texts>;

  static Values values_for(const CsvColumn& column) {
    if (column.type == CsvType::text) return Texts();
    if (column.type == CsvType::category) return CsvClasses(column.categories);
    return CsvNumbers(dtype_of_column(column.type), column.fill);
  }

  std::string take_number(CsvNumbers& numbers, std::string_view field) {
    const auto outcome = numbers.take(field);
    if (outcome == CsvNumbers::AttemptResult::taken) return {};
    const bool missing = outcome == CsvNumbers::AttemptResult::missing;
    return lines_.no_number(index_, dtype_of_column(column_.type),
                            missing ? "; set CsvColumn::fill for them" : "; CsvColumn::type sets the expected type");
  }

  const CsvColumn& column_;
  const CsvLines& lines_;
  size_t index_;  // index of the column in a line
  Values values_;
};

}  // namespace

CsvTable read_csv_columns(const std::filesystem::path& path, const CsvColumnOptions& csv) {
  check_column_options(csv);
  CsvLines lines(path, csv.delimiter, csv.header);
  std::vector<ColumnReader> columns;
  for (const auto& column : csv.columns) columns.emplace_back(column, lines);
  const auto take = [&](const CsvLines::Fields& fields) -> std::string {
    for (auto& column : columns)
      if (auto problem = column.look(fields); !problem.empty()) return problem;
    for (auto& column : columns) column.take(fields);
    return {};
  };
  lines.walk(csv.on_error, take, [&](size_t kept) {
    for (auto& column : columns) column.forget(kept);
  });
  CsvTable table{.columns = {}, .categories = {}, .skipped = lines.skipped()};
  for (auto& column : columns) column.move_into(table);
  return table;
}

LoaderOf<CsvColumns> csv_columns(const std::filesystem::path& path, const CsvColumnOptions& csv,
                                 const LoaderOptions& options) {
  return from_tensors(read_csv_columns(path, csv).columns, options);
}

}  // namespace accelerate::data
