// SPDX-License-Identifier: Apache-2.0
// metrics.csv: one row per call of log(), one column per name. A new name adds a column at the end; earlier rows remain
// shorter.
#include <fmt/format.h>

#include <algorithm>

#include "accelerate/tracking/append_file.hpp"
#include "accelerate/tracking/text.hpp"
#include "accelerate/tracking/tracker_table.hpp"

namespace accelerate::tracking {
namespace {

/// Quotes a cell as in RFC 4180.
std::string csv_cell(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

/// Returns the cells of the first row, and the position after its newline.
std::pair<std::vector<std::string>, size_t> first_row(std::string_view text) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  size_t at = 0;
  for (; at < text.size() && (quoted || text[at] != '\n'); ++at) {
    const char c = text[at];
    if (quoted && c == '"' && at + 1 < text.size() && text[at + 1] == '"') {
      cells.back() += c;
      ++at;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      cells.emplace_back();
    } else if (c != '\r' || quoted) {
      cells.back() += c;
    }
  }
  return {cells, std::min(at + 1, text.size())};
}

class Csv final : public Tracker {
 public:
  [[nodiscard]] std::string name() const override { return "csv"; }
  [[nodiscard]] bool requires_logging_directory() const override { return true; }

  void start(const Run& run) override {
    file_ = AppendFile(run.folder / "metrics.csv");
    if (file_.ends_within_line()) file_.append("\n");
    const std::string before = file_.read();
    columns_.clear();
    if (!before.empty()) columns_ = first_row(before).first;
  }

  void log(const Values& values, Step step) override {
    Values row{{"step", step ? Value(*step) : Value("")}, {"time", fmt::format("{:.3f}", wall_time())}};
    for (const auto& [name, value] : flattened(values)) set(row, valid_utf8(name), value);
    make_columns(row);
    std::string line;
    for (const auto& column : columns_) line += csv_cell(cell_of(row, column)) + ',';
    line.back() = '\n';
    file_.append(line);
  }

  void log_text(const std::string& name, const std::string& text, Step step) override { log({{name, text}}, step); }

 private:
  static void set(Values& row, const std::string& name, const Value& value) {
    const auto there = std::find_if(row.begin(), row.end(), [&](const auto& cell) { return cell.first == name; });
    if (there == row.end()) {
      row.emplace_back(name, value);
    } else {
      there->second = value;
    }
  }
  static std::string cell_of(const Values& row, const std::string& column) {
    for (const auto& [name, value] : row) {
      if (name == column) return valid_utf8(plain_text(value));
    }
    return "";
  }

  /// The header is at the start of the file, so a new column requires rewriting it.
  void make_columns(const Values& row) {
    auto columns = columns_;
    for (const auto& [name, value] : row) {
      if (std::find(columns.begin(), columns.end(), name) == columns.end()) columns.push_back(name);
    }
    if (columns == columns_) return;
    std::string header;
    for (const auto& column : columns) header += csv_cell(column) + ',';
    header.back() = '\n';
    const std::string before = file_.read();
    const size_t rows = columns_.empty() ? 0 : first_row(before).second;
    file_.replace(header + before.substr(rows));
    columns_ = std::move(columns);
  }

  AppendFile file_;
  std::vector<std::string> columns_;
};

}  // namespace

std::unique_ptr<Tracker> make_csv() { return std::make_unique<Csv>(); }

}  // namespace accelerate::tracking
