// SPDX-License-Identifier: Apache-2.0
// CSV files whose columns are of several types.
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

/// What the fields of a column become.
enum class CsvType {
  float32,
  float64,
  int64,     ///< "3.0" is 3
  category,  ///< int64: places among the column's names
  text,      ///< std::string, as it is
};

struct CsvColumn {
  /// As the file names it.
  std::string name;
  CsvType type = CsvType::float32;
  /// What a missing number becomes: nothing, NA or nan in any case. Unset: its line is broken.
  std::optional<double> fill{};
  /// Of a category: these names in this order, for files that may lack one, as a test set; another one breaks its line.
  /// Empty: all names of the file, sorted by their bytes.
  std::vector<std::string> categories{};
};

struct CsvColumnOptions {
  /// At least one.
  std::vector<CsvColumn> columns;
  char delimiter = ',';
  /// The first line names the columns. false: they are named 0, 1, 2 ...
  bool header = true;
  /// Of a broken line: one with too few or too many fields, or a field that is not of its column's type.
  OnError on_error = OnError::fail;
};

/// Columns by name.
struct CsvColumns {
  std::map<std::string, at::Tensor> numbers;              ///< [B] float32, float64 or int64; of a category int64
  std::map<std::string, std::vector<std::string>> texts;  ///< B each
};

/// Lets accelerate::tree walk them.
inline auto tree_members(CsvColumns& columns) { return std::tie(columns.numbers, columns.texts); }

struct CsvTable {
  CsvColumns columns;                                          ///< of N lines
  std::map<std::string, std::vector<std::string>> categories;  ///< names of each category; its numbers are places there
  int64_t skipped;                                             ///< broken lines that were left out
};

/// Reads some columns of a CSV file, each as its type; the format is that of read_csv.
///
/// Throws Error (usage) for columns that cannot be, Error (io) where the file cannot be opened, Error (data), with
/// path, line, column, expected and found, for a broken line (as on_error says), for a column that is not there and for
/// a file without samples.
[[nodiscard]] CsvTable read_csv_columns(const std::filesystem::path& path, const CsvColumnOptions& csv);

/// The same as a loader: csv_columns("x.csv", {.columns = {{"age", CsvType::int64}, {"city", CsvType::category}}},
/// {.batch_size = 32}).
///
/// batches   batch.numbers.at("age") [B], batch.texts.at("note") B strings
[[nodiscard]] LoaderOf<CsvColumns> csv_columns(const std::filesystem::path& path, const CsvColumnOptions& csv,
                                               const LoaderOptions& options = {});

}  // namespace accelerate::data
