// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/data/loader.hpp"
#include "accelerate/data/sources/on_error.hpp"

namespace accelerate::data {

struct CsvOptions {
  /// Data columns by name, in this order. If empty, all except the target, in the file's order.
  std::vector<std::string> columns{};
  /// The target column. If empty, batches have no target.
  std::string target{};
  /// Type of the data: float32, float64 or int64.
  at::ScalarType dtype = at::kFloat;
  /// Type of the target, from the same list. int64 accepts "3.0" as 3, for data columns too.
  at::ScalarType target_dtype = at::kLong;
  char delimiter = ',';
  /// If true, the first line contains the column names; otherwise they are 0, 1, 2, ...
  bool header = true;
  /// Replacement of a missing number in the data (empty, NA or nan in any case). If unset, its line is broken. A
  /// missing target always breaks its line.
  std::optional<double> fill{};
  /// Treatment of a broken line: too few or too many fields, a missing number, or text instead of a number.
  OnError on_error = OnError::fail;
  /// If set, targets must be 0 to classes-1.
  std::optional<int64_t> classes{};
  /// If true, targets are names of classes and become indices into CsvData::classes: all names of the file, sorted by
  /// bytes.
  bool text_classes = false;
  /// With text_classes: these names in this order, for files that may lack one, such as a test set. Another name breaks
  /// its line.
  std::vector<std::string> class_names{};
};

struct CsvData {
  at::Tensor data;    ///< [N, F]
  at::Tensor target;  ///< [N]; undefined without a target
  int64_t skipped;    ///< number of broken lines that were omitted
  /// With text_classes: name of each class; target is an index into it.
  std::vector<std::string> classes{};
};

/// Reads a CSV file in UTF-8 (RFC 4180: quoted fields; lines end with LF, CRLF or CR; empty lines are skipped).
///
/// \throws Error (io) if the file cannot be opened. Throws Error (data), with path, line, column, expected and found
///         values, if the file is in UTF-16 or UTF-32, has a broken line (depending on on_error), lacks a column, has
///         no samples, or has another number of class names than `classes`.
[[nodiscard]] CsvData read_csv(const std::filesystem::path& path, const CsvOptions& csv = {});

/// The same as a loader: csv("iris.csv", {.target = "species", .text_classes = true}, {.batch_size = 32}). Batches:
/// data [B, F] and target [B].
[[nodiscard]] Loader csv(const std::filesystem::path& path, const CsvOptions& csv = {},
                         const LoaderOptions& options = {});

}  // namespace accelerate::data
