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
  /// Of data: float32, float64 or int64.
  at::ScalarType dtype = at::kFloat;
  /// Of target, one of these too. int64 takes "3.0" as 3, as columns of data do.
  at::ScalarType target_dtype = at::kLong;
  char delimiter = ',';
  /// If true, the first line contains the column names; otherwise they are 0, 1, 2, ...
  bool header = true;
  /// What a missing number of data becomes: nothing, NA or nan in any case. Unset, and for the target: the line is
  /// broken.
  std::optional<double> fill{};
  /// Of a broken line: one with too few or too many fields, a missing number, or text where a number is due.
  OnError on_error = OnError::fail;
  /// If set, targets must be 0 to classes-1.
  std::optional<int64_t> classes{};
  /// Targets are text, names of classes, and become their places in CsvData::classes: all names of the file, sorted by
  /// their bytes.
  bool text_classes = false;
  /// Of text_classes: these names in this order, for files that may lack one, as a test set. Another one breaks its
  /// line.
  std::vector<std::string> class_names{};
};

struct CsvData {
  at::Tensor data;    ///< [N, F]
  at::Tensor target;  ///< [N]; undefined without a target
  int64_t skipped;    ///< broken lines that were left out
  /// With text_classes: name of each class; target is a place in it.
  std::vector<std::string> classes{};
};

/// Reads a CSV file in UTF-8 (RFC 4180: quoted fields; lines end with LF, CRLF or CR; empty lines are skipped).
///
/// \throws Error (io) if the file cannot be opened; Error (data), with path, line, column, expected and found, for a
/// file
///         in UTF-16 or UTF-32, a broken line (depending on on_error), a missing column, a file without samples, and
///         another number of class names than `classes`.
[[nodiscard]] CsvData read_csv(const std::filesystem::path& path, const CsvOptions& csv = {});

/// The same as a loader: csv("iris.csv", {.target = "species", .text_classes = true}, {.batch_size = 32}). Batches:
/// data [B, F] and target [B].
[[nodiscard]] Loader csv(const std::filesystem::path& path, const CsvOptions& csv = {},
                         const LoaderOptions& options = {});

}  // namespace accelerate::data
