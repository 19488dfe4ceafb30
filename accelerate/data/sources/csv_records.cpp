// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/sources/csv_records.hpp"

#include <algorithm>

namespace accelerate::data {

CsvRecords::CsvRecords(std::string_view text, char delimiter) : rest_(text), delimiter_(delimiter) {
  constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";
  if (rest_.starts_with(byte_order_mark)) rest_.remove_prefix(byte_order_mark.size());
}

namespace {

// Counts the line ends: LF, CRLF or CR.
int64_t line_ends_in(std::string_view text) {
  int64_t count = 0;
  for (size_t i = 0; i < text.size(); ++i)
    count += text[i] == '\n' || (text[i] == '\r' && !text.substr(i + 1).starts_with('\n')) ? 1 : 0;
  return count;
}

}  // namespace

bool CsvRecords::next() {
  while (!rest_.empty() && at_line_end()) end_line();
  fields_.clear();
  problem_ = {};
  line_ = next_line_;
  if (rest_.empty()) return false;
  for (;;) {
    if (rest_.starts_with('"')) {
      take_quoted();
    } else {
      take_plain();
    }
    if (at_line_end()) break;
    rest_.remove_prefix(1);  // the delimiter
  }
  end_line();
  return true;
}

void CsvRecords::take_plain() {
  const char* const begin = rest_.data();
  const char* const last = begin + rest_.size();
  const char* end = begin;
  while (end != last && *end != delimiter_ && *end != '\n' && *end != '\r') ++end;
  fields_.push_back({rest_.substr(0, static_cast<size_t>(end - begin))});
  rest_.remove_prefix(static_cast<size_t>(end - begin));
}

void CsvRecords::take_quoted() {
  rest_.remove_prefix(1);
  size_t end = rest_.find('"');
  while (end != std::string_view::npos && rest_.substr(end + 1).starts_with('"')) end = rest_.find('"', end + 2);
  if (end == std::string_view::npos) {  // skips only this line
    problem_ = "a quoted field does not end: expected a closing \"";
    rest_.remove_prefix(std::min(rest_.find_first_of("\r\n"), rest_.size()));
    return;
  }
  const auto field = rest_.substr(0, end);
  next_line_ += line_ends_in(field);
  fields_.push_back({field, /*quoted=*/true});
  rest_.remove_prefix(std::min(end + 1, rest_.size()));
  if (at_line_end() || rest_[0] == delimiter_) return;
  if (problem_.empty()) problem_ = "text follows a closing \": a quote within a quoted field is written twice";
  take_plain();
  fields_.pop_back();
}

void CsvRecords::end_line() {
  if (rest_.empty()) return;
  rest_.remove_prefix(rest_.starts_with("\r\n") ? 2 : 1);
  ++next_line_;
}

std::string unescaped(const CsvField& field) {
  if (!field.quoted) return std::string(field);
  std::string text;
  for (size_t i = 0; i < field.size(); ++i) {
    text += field[i];
    if (field[i] == '"' && field.substr(i + 1).starts_with('"')) ++i;
  }
  return text;
}

}  // namespace accelerate::data
