// SPDX-License-Identifier: Apache-2.0
// RFC 4180: records of fields, quoted or not, that end with LF, CRLF or CR.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::data {

/// Without the quotes around it; a quote within is still written twice.
struct CsvField : std::string_view {
  bool quoted = false;
};

/// Cuts a text into records, one after another. Copies nothing.
class CsvRecords {
 public:
  /// \param text  Must outlive this object; a byte order mark at its start is skipped.
  CsvRecords(std::string_view text, char delimiter);

  /// Goes to the next record; empty lines are none. returns   false at the end
  bool next();

  [[nodiscard]] const std::vector<CsvField>& fields() const { return fields_; }
  /// Where the record begins, from 1.
  [[nodiscard]] int64_t line() const { return line_; }
  /// What is wrong with its quotes; empty: nothing. Where one does not end, the record is its line alone.
  [[nodiscard]] std::string_view problem() const { return problem_; }

 private:
  void take_plain();
  void take_quoted();
  [[nodiscard]] bool at_line_end() const { return rest_.empty() || rest_[0] == '\n' || rest_[0] == '\r'; }
  void end_line();

  std::string_view rest_;
  char delimiter_;
  int64_t line_ = 0;
  int64_t next_line_ = 1;
  std::vector<CsvField> fields_;
  std::string_view problem_;
};

/// A field as it was before it was written: "" within quotes is ".
std::string unescaped(const CsvField& field);

}  // namespace accelerate::data
