// SPDX-License-Identifier: Apache-2.0
// The lines of a CSV file below the one with the names, each offered to whoever takes its fields.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/data/sources/csv_numbers.hpp"
#include "accelerate/data/sources/csv_records.hpp"
#include "accelerate/data/sources/files.hpp"
#include "accelerate/data/sources/on_error.hpp"

namespace accelerate::data {

inline constexpr std::string_view csv_operation = "csv";

/// Throws Error (usage) for one that ends fields or lines already.
void check_delimiter(char delimiter);
/// 'a', 'b', 'c' ...
std::string listed_names(const std::vector<std::string>& names);
/// A missing number of that dtype becomes one.
bool can_fill(at::ScalarType dtype, double fill);

class CsvLines {
 public:
  using Fields = std::vector<CsvField>;

  /// header   the first line names the columns; else they are named 0, 1, 2 ...
  /// Throws Error (io) where the file cannot be opened, Error (data) where it is empty or its first line is broken.
  CsvLines(const std::filesystem::path& path, char delimiter, bool header);

  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  /// Its place in a line. Throws Error (data) where there is none, or more than one.
  [[nodiscard]] size_t find_column(const std::string& name) const;

  /// Walks all lines. Throws Error (data) for a broken one, as on_error says, and where no line is whole.
  ///
  /// take     returns what is wrong with the fields; empty: they are taken
  /// forget   called with the number of whole lines after one that take refused
  void walk(OnError on_error, const std::function<std::string(const Fields&)>& take,
            const std::function<void(size_t)>& forget);
  /// Whole lines, and broken ones that were left out.
  [[nodiscard]] int64_t kept() const { return kept_; }
  [[nodiscard]] int64_t skipped() const { return lines_ - kept_; }

  [[nodiscard]] std::string path() const { return file_.path().string(); }
  /// Where a field of the line at hand is, for errors.
  [[nodiscard]] std::string place(size_t column) const;
  /// What is wrong with a field that is no number.
  [[nodiscard]] std::string no_number(size_t column, at::ScalarType dtype, std::string_view remedy) const;

 private:
  [[nodiscard]] std::string problem_of_fields() const;
  void finish() const;

  MappedFile file_;
  CsvRecords records_;
  bool header_;
  std::vector<std::string> names_;
  int64_t lines_ = 0;
  int64_t kept_ = 0;
  std::string first_problem_;
};

}  // namespace accelerate::data
