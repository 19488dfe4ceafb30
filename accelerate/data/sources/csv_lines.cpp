// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/sources/csv_lines.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "accelerate/base/error.hpp"
#include "accelerate/base/log.hpp"

namespace accelerate::data {
namespace {

// Returns the encoding if the first bytes show that it is not UTF-8; otherwise "".
std::string_view other_encoding(std::string_view text) {
  using namespace std::string_view_literals;
  if (text.starts_with("\xff\xfe\0\0"sv)) return "UTF-32LE";
  if (text.starts_with("\0\0\xfe\xff"sv)) return "UTF-32BE";
  if (text.starts_with("\xff\xfe"sv)) return "UTF-16LE";
  if (text.starts_with("\xfe\xff"sv)) return "UTF-16BE";
  // Without a byte order mark, an ASCII character next to a zero byte shows UTF-16.
  if (text.size() < 2 || (text[0] == '\0') == (text[1] == '\0')) return {};
  return text[0] == '\0' ? "UTF-16BE" : text.substr(1).starts_with("\0\0\0"sv) ? "UTF-32LE" : "UTF-16LE";
}

void check_is_utf8(std::string_view text, const std::filesystem::path& path) {
  const auto encoding = other_encoding(text);
  if (encoding.empty()) return;
  base::fail(ErrorKind::data, {}, kCsvOperation,
             "{} is encoded in {}: expected UTF-8; convert it with iconv -f {} -t UTF-8", path.string(), encoding,
             encoding);
}

}  // namespace

void check_delimiter(char delimiter) {
  if (delimiter == '"' || delimiter == '\n' || delimiter == '\r')
    base::fail(ErrorKind::usage, {}, kCsvOperation,
               "delimiter is {}, must be another character than quotes and line ends",
               quote_for_terminal({&delimiter, 1}));
}

std::string listed_names(const std::vector<std::string>& names) {
  constexpr size_t most = 20;
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(names.size(), most); ++i) shown.push_back(quote_for_terminal(names[i]));
  return fmt::format("{}{}", fmt::join(shown, ", "), names.size() > most ? " ..." : "");
}

bool can_fill(at::ScalarType dtype, double fill) {
  return dtype != at::kLong || (std::nearbyint(fill) == fill && std::abs(fill) < 0x1p63);
}

CsvLines::CsvLines(const std::filesystem::path& path, char delimiter, bool header)
    : file_(path, kCsvOperation), records_(file_.text(), delimiter), header_(header) {
  check_is_utf8(file_.text(), path);
  if (!records_.next())
    base::fail(ErrorKind::data, {}, kCsvOperation, "{} is empty: expected {}", path.string(),
               header ? "a line with the columns' names" : "a sample");
  if (!records_.problem().empty())
    base::fail(ErrorKind::data, {}, kCsvOperation, "{} line {}: {}", path.string(), records_.line(),
               records_.problem());
  for (size_t i = 0; i < records_.fields().size(); ++i)
    names_.push_back(header ? unescaped(records_.fields()[i]) : fmt::to_string(i));
}

size_t CsvLines::find_column(const std::string& name) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (found == names_.end()) {
    base::fail(ErrorKind::data, {}, kCsvOperation, "{} line {} has no column {}: found {}", path(), records_.line(),
               quote_for_terminal(name), listed_names(names_));
  }
  if (std::find(found + 1, names_.end(), name) != names_.end())
    base::fail(ErrorKind::data, {}, kCsvOperation, "{} line {} has the column {} more than once: expected it once",
               path(), records_.line(), quote_for_terminal(name));
  return static_cast<size_t>(found - names_.begin());
}

void CsvLines::walk(OnError on_error, const std::function<std::string(const Fields&)>& take,
                    const std::function<void(size_t)>& forget) {
  for (bool more = !header_ || records_.next(); more; more = records_.next()) {
    ++lines_;
    std::string problem = problem_of_fields();
    if (problem.empty()) problem = take(records_.fields());
    if (problem.empty()) {
      ++kept_;
      continue;
    }
    if (on_error == OnError::fail) throw base::Error(ErrorKind::data, {}, kCsvOperation, problem);
    forget(static_cast<size_t>(kept_));
    if (first_problem_.empty()) first_problem_ = std::move(problem);
  }
  finish();
}

std::string CsvLines::problem_of_fields() const {
  if (!records_.problem().empty()) return fmt::format("{} line {}: {}", path(), records_.line(), records_.problem());
  const auto found = records_.fields().size();
  if (found == names_.size()) return {};
  return fmt::format("{} line {}: expected {} fields, found {}", path(), records_.line(), names_.size(), found);
}

void CsvLines::finish() const {
  if (lines_ == 0)
    base::fail(ErrorKind::data, {}, kCsvOperation, "{} has no samples: expected at least 1 line after the names",
               path());
  if (kept_ == 0)
    base::fail(ErrorKind::data, {}, kCsvOperation, "all {} lines are broken; the first: {}", lines_, first_problem_);
  if (kept_ != lines_)
    base::log_once(base::LogLevel::warning, {}, "csv: {} of {} lines are left out; the first: {}", lines_ - kept_,
                   lines_, first_problem_);
}

std::string CsvLines::place(size_t column) const {
  return fmt::format("{} line {}, column {}:", path(), records_.line(), quote_for_terminal(names_[column]));
}

std::string CsvLines::no_number(size_t column, at::ScalarType dtype, std::string_view remedy) const {
  const auto& field = records_.fields()[column];
  return fmt::format("{} expected a number ({}), found {}{}", place(column), dtype_name(dtype),
                     field.empty() ? "nothing" : quote_for_terminal(field), remedy);
}

}  // namespace accelerate::data
