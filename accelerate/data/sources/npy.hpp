// SPDX-License-Identifier: Apache-2.0
// Tensors in mapped files: untouched data is not read, and all ranks of a machine share one copy.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "accelerate/data/loader.hpp"
#include "accelerate/data/sources/on_error.hpp"

namespace accelerate::data {

/// The array of a NumPy file, as numpy.load(path, mmap_mode="c"): it refers to the mapped file, and writes stay in this
/// process. The file must not be truncated during use.
///
/// \returns a tensor with the file's shape and dtype: bool, int8 to int64, uint8 to uint64, float16 to float64,
///          complex64, complex128.
/// \throws Error (io) if the file cannot be opened; Error (data), with path, expected and found values, for a broken
///         file, and for arrays that are not numeric, not little-endian or in Fortran order, with the call that saves
///         them differently.
[[nodiscard]] at::Tensor map_npy(const std::filesystem::path& path);

/// A file of consecutive samples as little-endian numbers without a format.
struct RawFile {
  std::filesystem::path path;
  at::ScalarType dtype = at::kFloat;
  /// Shape of one sample, without N. If empty, a sample is a number.
  std::vector<int64_t> sample_shape{};
  /// Bytes before the first sample.
  int64_t header_bytes = 0;
};

/// As map_npy for a file of raw numbers. \returns [N, sample_shape] with N from the file size.
/// \throws Error (data) if the file ends within a sample.
[[nodiscard]] at::Tensor map_raw(const RawFile& file);

struct NpyFiles {
  std::filesystem::path data;
  /// If empty, batches have no target.
  std::filesystem::path target{};
  /// If set, labels must be 0 to classes-1; all are read and checked.
  std::optional<int64_t> classes{};
  /// Treatment of samples with an invalid label; skip requires classes. A truncated or too long file is always an
  /// error, because its header determines its size, and the valid samples are unknown.
  OnError on_error = OnError::fail;
};

/// Samples from NumPy files: npy({.data = "x.npy", .target = "y.npy"}, {.batch_size = 64}). Batches: data [B, ...] and
/// target [B, ...] with the files' dtypes, copied from the mapped files. For raw numbers use
/// from_tensors(map_raw({...}), map_raw({...}), {.batch_size = 64}).
[[nodiscard]] Loader npy(const NpyFiles& files, const LoaderOptions& options = {});

}  // namespace accelerate::data
