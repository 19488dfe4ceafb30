// SPDX-License-Identifier: Apache-2.0
// CSV files with columns of several types.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "accelerate/data/loader.hpp"
#include "accelerate/data/sources/on_error.hpp"

namespace accelerate::data {

/// Type of a column.
enum class CsvType {
  float32,
  float64,
  int64,     ///< accepts "3.0" as 3
  category,  ///< int64 indices into the column's names
  text,      ///< unchanged std::string
};

struct CsvColumn {
  /// Name in the file.
  std::string name;
  CsvType type = CsvType::float32;
  /// Replacement of a missing number (empty, NA or nan in any case). If unset, its line is broken.
  std::optional<double> fill{};
  /// For a category: these names in this order, for files that may lack one, such as a test set; another name breaks
  /// its line. If empty, all names of the file, sorted by bytes.
  std::vector<std::string> categories{};
};

struct CsvColumnOptions {
  /// At least one.
  std::vector<CsvColumn> columns;
  char delimiter = ',';
  /// If true, the first line contains the column names; otherwise they are 0, 1, 2, ...
  bool header = true;
  /// Treatment of a broken line: too few or too many fields, or a field of another type than its column.
  OnError on_error = OnError::fail;
};

/// Columns by name.
struct CsvColumns {
  std::map<std::string, at::Tensor> numbers;              ///< [B] float32, float64 or int64; int64 for a category
  std::map<std::string, std::vector<std::string>> texts;  ///< B strings each
};

/// Makes CsvColumns a tree for accelerate::tree.
inline auto tree_members(CsvColumns& columns) { return std::tie(columns.numbers, columns.texts); }

struct CsvTable {
  CsvColumns columns;  ///< columns of N lines
  /// names of each category; its numbers are indices into them
  std::map<std::string, std::vector<std::string>> categories;
  int64_t skipped;  ///< number of broken lines that were omitted
};

/// Reads columns of a CSV file, each with its type; the format is that of read_csv.
///
/// \throws Error (usage) for invalid columns; Error (io) if the file cannot be opened; Error (data), with path, line,
///         column, expected and found, for a broken line (depending on on_error), a missing column and a file without
///         samples.
[[nodiscard]] CsvTable read_csv_columns(const std::filesystem::path& path, const CsvColumnOptions& csv);

/// The same as a loader: csv_columns("x.csv", {.columns = {{"age", CsvType::int64}, {"city", CsvType::category}}},
/// {.batch_size = 32}). Batches: batch.numbers.at("age") [B], batch.texts.at("note") B strings.
[[nodiscard]] LoaderOf<CsvColumns> csv_columns(const std::filesystem::path& path, const CsvColumnOptions& csv,
                                               const LoaderOptions& options = {});

}  // namespace accelerate::data
