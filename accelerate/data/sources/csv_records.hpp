// SPDX-License-Identifier: Apache-2.0
// RFC 4180: records of fields, quoted or not, that end with LF, CRLF or CR.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::data {

/// A field without its enclosing quotes; a quote within is still written twice.
struct CsvField : std::string_view {
  bool quoted = false;
};

/// Divides a text into records without copies.
class CsvRecords {
 public:
  /// \param text  Must outlive this object; a byte order mark at its start is skipped.
  CsvRecords(std::string_view text, char delimiter);

  /// Advances to the next record, skipping empty lines. Returns false at the end.
  bool next();

  [[nodiscard]] const std::vector<CsvField>& fields() const { return fields_; }
  /// First line of the record, from 1.
  [[nodiscard]] int64_t line() const { return line_; }
  /// Error of its quotes, or "". If a quoted field does not end, the record is only its first line.
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

/// Original text of a field: "" within quotes becomes ".
std::string unescaped(const CsvField& field);

}  // namespace accelerate::data
