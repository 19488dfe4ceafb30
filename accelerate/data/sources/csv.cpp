// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/sources/csv.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "accelerate/base/error.hpp"
#include "accelerate/data/memory.hpp"
#include "accelerate/data/sources/csv_classes.hpp"
#include "accelerate/data/sources/csv_lines.hpp"
#include "accelerate/data/sources/csv_numbers.hpp"

namespace accelerate::data {
namespace {

void check_dtype(at::ScalarType dtype, std::string_view name) {
  if (dtype != at::kFloat && dtype != at::kDouble && dtype != at::kLong)
    base::fail(ErrorKind::usage, {}, kCsvOperation, "{} is {}, must be float32, float64 or int64", name,
               dtype_name(dtype));
}

void check_class_names(const CsvOptions& csv) {
  if (!csv.text_classes && !csv.class_names.empty())
    base::fail(ErrorKind::usage, {}, kCsvOperation, "class_names are given, but text_classes is off");
  if (csv.text_classes && (csv.target.empty() || csv.target_dtype != at::kLong))
    base::fail(ErrorKind::usage, {}, kCsvOperation, "text_classes is on, but {}",
               csv.target.empty() ? "target is not set" : "target_dtype is not int64");
  for (auto name = csv.class_names.begin(); name != csv.class_names.end(); ++name)
    if (std::find(name + 1, csv.class_names.end(), *name) != csv.class_names.end())
      base::fail(ErrorKind::usage, {}, kCsvOperation, "class_names has {} more than once", quote_for_terminal(*name));
  if (csv.classes && !csv.class_names.empty() && *csv.classes != static_cast<int64_t>(csv.class_names.size()))
    base::fail(ErrorKind::usage, {}, kCsvOperation, "classes is {}, but class_names has {}", *csv.classes,
               csv.class_names.size());
}

void check_csv_options(const CsvOptions& csv) {
  check_dtype(csv.dtype, "dtype");
  check_dtype(csv.target_dtype, "target_dtype");
  check_delimiter(csv.delimiter);
  if (csv.fill && !can_fill(csv.dtype, *csv.fill))
    base::fail(ErrorKind::usage, {}, kCsvOperation, "fill is {}, must be an int64, as dtype is one", *csv.fill);
  check_class_names(csv);
  if (!csv.classes) return;
  if (*csv.classes < 1)
    base::fail(ErrorKind::usage, {}, kCsvOperation, "classes is {}, must be at least 1", *csv.classes);
  if (csv.target.empty() || csv.target_dtype != at::kLong)
    base::fail(ErrorKind::usage, {}, kCsvOperation, "classes is {}, but {}", *csv.classes,
               csv.target.empty() ? "target is not set" : "target_dtype is not int64");
}

/// Reads one file into tensors.
class CsvReader {
 public:
  CsvReader(const std::filesystem::path& path, const CsvOptions& csv)
      : options_(csv),
        lines_(path, csv.delimiter, csv.header),
        data_(csv.dtype, csv.fill),
        target_(csv.target_dtype, std::nullopt),
        classes_(csv.class_names) {}

  CsvData read() {
    choose_columns();
    lines_.walk(
        options_.on_error, [this](const auto& fields) { return take_line(fields); },
        [this](size_t kept) { forget(kept); });
    check_names();
    const auto features = static_cast<int64_t>(columns_.size());
    return {.data = data_.tensor({lines_.kept(), features}),
            .target = target_tensor(),
            .skipped = lines_.skipped(),
            .classes = classes_.names()};
  }

 private:
  void choose_columns() {
    if (!options_.target.empty()) target_column_ = lines_.find_column(options_.target);
    for (const auto& name : options_.columns) columns_.push_back(lines_.find_column(name));
    for (size_t i = 0; options_.columns.empty() && i < lines_.names().size(); ++i)
      if (i != target_column_) columns_.push_back(i);
    if (columns_.empty())
      base::fail(ErrorKind::data, {}, kCsvOperation,
                 "{} has the column {} alone: expected at least one beside the target", lines_.path(),
                 quote_for_terminal(options_.target));
  }

  std::string take_line(const CsvLines::Fields& fields) {
    for (const size_t column : columns_) {
      const auto outcome = data_.take(fields[column]);
      if (outcome == CsvNumbers::AttemptResult::taken) continue;
      const bool missing = outcome == CsvNumbers::AttemptResult::missing;
      return lines_.no_number(column, options_.dtype, missing ? "; CsvOptions::fill is for these" : "");
    }
    if (!target_column_) return {};
    return options_.text_classes ? take_name(fields[*target_column_]) : take_target(fields[*target_column_]);
  }

  std::string take_target(std::string_view field) {
    if (target_.take(field) != CsvNumbers::AttemptResult::taken)
      return lines_.no_number(*target_column_, options_.target_dtype, "");
    if (!options_.classes || (target_.last() >= 0 && target_.last() < *options_.classes)) return {};
    return fmt::format("{} expected a label from 0 to {}, found {}", lines_.place(*target_column_),
                       *options_.classes - 1, target_.last());
  }

  std::string take_name(const CsvField& field) {
    const auto place = [this] { return lines_.place(*target_column_); };
    if (field.empty()) return fmt::format("{} expected the name of a class, found nothing", place());
    if (classes_.take(unescaped(field))) return {};
    return fmt::format("{} expected one of {}, found {}", place(), listed_names(classes_.names()),
                       quote_for_terminal(field));
  }

  void forget(size_t kept) {
    data_.cut(kept * columns_.size());
    target_.cut(target_column_ && !options_.text_classes ? kept : 0);
  }

  void check_names() const {
    const auto names = classes_.names();
    if (options_.text_classes && options_.classes && *options_.classes != static_cast<int64_t>(names.size()))
      base::fail(ErrorKind::data, {}, kCsvOperation, "{} names {} classes: expected {}, found {}", lines_.path(),
                 names.size(), *options_.classes, listed_names(names));
  }

  [[nodiscard]] at::Tensor target_tensor() {
    if (!target_column_) return {};
    return options_.text_classes ? classes_.tensor() : target_.tensor({lines_.kept()});
  }

  const CsvOptions& options_;
  CsvLines lines_;
  CsvNumbers data_;
  CsvNumbers target_;
  CsvClasses classes_;           // replaces target_ for text classes
  std::vector<size_t> columns_;  // data columns
  std::optional<size_t> target_column_;
};

}  // namespace

CsvData read_csv(const std::filesystem::path& path, const CsvOptions& csv) {
  check_csv_options(csv);
  return CsvReader(path, csv).read();
}

Loader csv(const std::filesystem::path& path, const CsvOptions& csv, const LoaderOptions& options) {
  const CsvData read = read_csv(path, csv);
  return from_tensors(read.data, read.target, options);
}

}  // namespace accelerate::data
