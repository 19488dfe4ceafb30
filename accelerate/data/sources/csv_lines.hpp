// SPDX-License-Identifier: Apache-2.0
// Data lines of a CSV file, each passed to a consumer of its fields.
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

inline constexpr std::string_view kCsvOperation = "csv";

/// \throws Error (usage) for a delimiter that already ends fields or lines.
void check_delimiter(char delimiter);
/// Returns 'a', 'b', 'c' ...
std::string listed_names(const std::vector<std::string>& names);
/// True if `fill` can replace a missing number of that dtype.
bool can_fill(at::ScalarType dtype, double fill);

class CsvLines {
 public:
  using Fields = std::vector<CsvField>;

  /// \param header  If true, the first line contains the column names; otherwise they are 0, 1, 2, ...
  /// \throws Error (io) if the file cannot be opened; Error (data) if it is empty or its first line is broken.
  CsvLines(const std::filesystem::path& path, char delimiter, bool header);

  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  /// Position of the column. \throws Error (data) if it is missing or ambiguous.
  [[nodiscard]] size_t find_column(const std::string& name) const;

  /// Visits all lines.
  ///
  /// \param take    Returns the error of the fields, or "" if it has stored them.
  /// \param forget  Called with the number of valid lines after `take` has refused one.
  /// \throws Error (data) for a broken line (depending on on_error), and if no line is valid.
  void walk(OnError on_error, const std::function<std::string(const Fields&)>& take,
            const std::function<void(size_t)>& forget);
  /// Number of valid lines.
  [[nodiscard]] int64_t kept() const { return kept_; }
  [[nodiscard]] int64_t skipped() const { return lines_ - kept_; }

  [[nodiscard]] std::string path() const { return file_.path().string(); }
  /// Position of a field of the current line, for errors.
  [[nodiscard]] std::string place(size_t column) const;
  /// Error for a field that is not a number.
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
