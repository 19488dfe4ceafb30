// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/sources/csv.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "accelerate/base/log.hpp"
#include "accelerate/data/memory.hpp"
#include "accelerate/data/sources/csv_classes.hpp"
#include "accelerate/data/sources/csv_numbers.hpp"
#include "accelerate/data/sources/csv_records.hpp"
#include "accelerate/data/sources/files.hpp"

namespace accelerate::data {
namespace {

constexpr std::string_view csv_operation = "csv";

void check_dtype(at::ScalarType dtype, std::string_view name) {
  if (dtype != at::kFloat && dtype != at::kDouble && dtype != at::kLong)
    base::fail(ErrorKind::usage, {}, csv_operation, "{} is {}, must be float32, float64 or int64", name,
               dtype_name(dtype));
}

void check_class_names(const CsvOptions& csv) {
  if (!csv.text_classes && !csv.class_names.empty())
    base::fail(ErrorKind::usage, {}, csv_operation, "class_names are given, but text_classes is off");
  if (csv.text_classes && (csv.target.empty() || csv.target_dtype != at::kLong))
    base::fail(ErrorKind::usage, {}, csv_operation, "text_classes is on, but {}",
               csv.target.empty() ? "there is no target" : "target_dtype is not int64");
  for (auto name = csv.class_names.begin(); name != csv.class_names.end(); ++name)
    if (std::find(name + 1, csv.class_names.end(), *name) != csv.class_names.end())
      base::fail(ErrorKind::usage, {}, csv_operation, "class_names has {} more than once", in_quotes(*name));
  if (csv.classes && !csv.class_names.empty() && *csv.classes != static_cast<int64_t>(csv.class_names.size()))
    base::fail(ErrorKind::usage, {}, csv_operation, "classes is {}, but class_names has {}", *csv.classes,
               csv.class_names.size());
}

void check_csv_options(const CsvOptions& csv) {
  check_dtype(csv.dtype, "dtype");
  check_dtype(csv.target_dtype, "target_dtype");
  if (csv.delimiter == '"' || csv.delimiter == '\n' || csv.delimiter == '\r')
    base::fail(ErrorKind::usage, {}, csv_operation,
               "delimiter is {}, must be another character than quotes and line ends", in_quotes({&csv.delimiter, 1}));
  if (csv.fill && csv.dtype == at::kLong && !(std::nearbyint(*csv.fill) == *csv.fill && std::abs(*csv.fill) < 0x1p63))
    base::fail(ErrorKind::usage, {}, csv_operation, "fill is {}, must be an int64, as dtype is one", *csv.fill);
  check_class_names(csv);
  if (!csv.classes) return;
  if (*csv.classes < 1)
    base::fail(ErrorKind::usage, {}, csv_operation, "classes is {}, must be at least 1", *csv.classes);
  if (csv.target.empty() || csv.target_dtype != at::kLong)
    base::fail(ErrorKind::usage, {}, csv_operation, "classes is {}, but {}", *csv.classes,
               csv.target.empty() ? "there is no target" : "target_dtype is not int64");
}

/// 'a', 'b', 'c' ...
std::string listed_names(const std::vector<std::string>& names) {
  constexpr size_t most = 20;
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(names.size(), most); ++i) shown.push_back(in_quotes(names[i]));
  return fmt::format("{}{}", fmt::join(shown, ", "), names.size() > most ? " ..." : "");
}

/// One file on its way into tensors.
class CsvReader {
 public:
  CsvReader(const std::filesystem::path& path, const CsvOptions& csv)
      : options_(csv),
        file_(path, csv_operation),
        records_(file_.text(), csv.delimiter),
        data_(csv.dtype, csv.fill),
        target_(csv.target_dtype, std::nullopt),
        classes_(csv.class_names) {}

  CsvData read() {
    bool more = records_.next();
    if (!more) base::fail(ErrorKind::data, {}, csv_operation, "{} is empty: expected {}", path(), first_line());
    read_names();
    choose_columns();
    if (options_.header) more = records_.next();
    for (; more; more = records_.next()) {
      ++lines_;
      const std::string problem = take_line();
      if (!problem.empty()) leave_out(problem);
    }
    finish();
    const auto features = static_cast<int64_t>(columns_.size());
    return {.data = data_.tensor({kept_, features}),
            .target = target_tensor(),
            .skipped = lines_ - kept_,
            .classes = classes_.names()};
  }

 private:
  [[nodiscard]] std::string path() const { return file_.path().string(); }
  [[nodiscard]] std::string_view first_line() const {
    return options_.header ? "a line with the columns' names" : "a sample";
  }

  void read_names() {
    if (!records_.problem().empty())
      base::fail(ErrorKind::data, {}, csv_operation, "{} line {}: {}", path(), records_.line(), records_.problem());
    for (size_t i = 0; i < records_.fields().size(); ++i)
      names_.push_back(options_.header ? unescaped(records_.fields()[i]) : fmt::to_string(i));
  }

  void choose_columns() {
    if (!options_.target.empty()) target_column_ = find_column(options_.target);
    for (const auto& name : options_.columns) columns_.push_back(find_column(name));
    for (size_t i = 0; options_.columns.empty() && i < names_.size(); ++i)
      if (i != target_column_) columns_.push_back(i);
    if (columns_.empty())
      base::fail(ErrorKind::data, {}, csv_operation,
                 "{} has the column {} alone: expected at least one beside the target", path(),
                 in_quotes(options_.target));
  }

  [[nodiscard]] size_t find_column(const std::string& name) const {
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found == names_.end()) {
      base::fail(ErrorKind::data, {}, csv_operation, "{} line {} has no column {}: found {}", path(), records_.line(),
                 in_quotes(name), listed_names(names_));
    }
    if (std::find(found + 1, names_.end(), name) != names_.end())
      base::fail(ErrorKind::data, {}, csv_operation, "{} line {} has the column {} more than once: expected it once",
                 path(), records_.line(), in_quotes(name));
    return static_cast<size_t>(found - names_.begin());
  }

  /// returns   what is wrong with the line; empty: it is taken
  std::string take_line() {
    const auto& fields = records_.fields();
    if (!records_.problem().empty()) return fmt::format("{} line {}: {}", path(), records_.line(), records_.problem());
    if (fields.size() != names_.size())
      return fmt::format("{} line {}: expected {} fields, found {}", path(), records_.line(), names_.size(),
                         fields.size());
    for (const size_t column : columns_) {
      const auto outcome = data_.take(fields[column]);
      if (outcome != CsvNumbers::Outcome::taken)
        return no_number(column, outcome, options_.dtype, "; CsvOptions::fill is for these");
    }
    if (target_column_) {
      auto problem = options_.text_classes ? take_name(fields[*target_column_]) : take_target(fields[*target_column_]);
      if (!problem.empty()) return problem;
    }
    ++kept_;
    return {};
  }

  std::string take_target(std::string_view field) {
    const auto outcome = target_.take(field);
    if (outcome != CsvNumbers::Outcome::taken) return no_number(*target_column_, outcome, options_.target_dtype, "");
    if (!options_.classes || (target_.last() >= 0 && target_.last() < *options_.classes)) return {};
    return fmt::format("{} expected a label from 0 to {}, found {}", place(*target_column_), *options_.classes - 1,
                       target_.last());
  }

  std::string take_name(std::string_view field) {
    if (field.empty()) return fmt::format("{} expected the name of a class, found nothing", place(*target_column_));
    if (classes_.take(unescaped(field))) return {};
    return fmt::format("{} expected one of {}, found {}", place(*target_column_), listed_names(classes_.names()),
                       in_quotes(field));
  }

  [[nodiscard]] at::Tensor target_tensor() {
    if (!target_column_) return {};
    return options_.text_classes ? classes_.tensor() : target_.tensor({kept_});
  }

  [[nodiscard]] std::string place(size_t column) const {
    return fmt::format("{} line {}, column {}:", path(), records_.line(), in_quotes(names_[column]));
  }

  [[nodiscard]] std::string no_number(size_t column, CsvNumbers::Outcome outcome, at::ScalarType dtype,
                                      std::string_view remedy) const {
    const auto& field = records_.fields()[column];
    const bool missing = outcome == CsvNumbers::Outcome::missing;
    return fmt::format("{} expected a number ({}), found {}{}", place(column), dtype_name(dtype),
                       field.empty() ? "nothing" : in_quotes(field), missing ? remedy : "");
  }

  void leave_out(const std::string& problem) {
    if (options_.on_error == OnError::fail) throw base::Error(ErrorKind::data, {}, csv_operation, problem);
    data_.cut(static_cast<size_t>(kept_) * columns_.size());
    target_.cut(target_column_ && !options_.text_classes ? static_cast<size_t>(kept_) : 0);
    if (first_problem_.empty()) first_problem_ = problem;
  }

  void finish() const {
    if (lines_ == 0)
      base::fail(ErrorKind::data, {}, csv_operation, "{} has no samples: expected at least 1 line after the names",
                 path());
    if (kept_ == 0)
      base::fail(ErrorKind::data, {}, csv_operation, "all {} lines are broken; the first: {}", lines_, first_problem_);
    const auto names = classes_.names();
    if (options_.text_classes && options_.classes && *options_.classes != static_cast<int64_t>(names.size()))
      base::fail(ErrorKind::data, {}, csv_operation, "{} names {} classes: expected {}, found {}", path(), names.size(),
                 *options_.classes, listed_names(names));
    if (kept_ != lines_)
      base::log_once(base::LogLevel::warning, {}, "csv: {} of {} lines are left out; the first: {}", lines_ - kept_,
                     lines_, first_problem_);
  }

  const CsvOptions& options_;
  MappedFile file_;
  CsvRecords records_;
  CsvNumbers data_;
  CsvNumbers target_;
  CsvClasses classes_;  // in the stead of targets
  std::vector<std::string> names_;
  std::vector<size_t> columns_;  // of data
  std::optional<size_t> target_column_;
  int64_t lines_ = 0;
  int64_t kept_ = 0;
  std::string first_problem_;
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
