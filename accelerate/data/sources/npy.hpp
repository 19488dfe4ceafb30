// SPDX-License-Identifier: Apache-2.0
// Tensors that lie in files: what is not touched is not read, and all ranks of a machine share one copy.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "accelerate/data/loader.hpp"
#include "accelerate/data/sources/on_error.hpp"

namespace accelerate::data {

/// The array of a NumPy file, as numpy.load(path, mmap_mode="c"): it lies in the file, what is written into it stays in
/// this process. The file must not be cut while it is in use.
///
/// returns   the file's shape and dtype: bool, int8 to int64, uint8 to uint64, float16 to float64, complex64,
/// complex128 Throws Error (io) where the file cannot be opened, Error (data), with path, expected and found, for a
/// broken one, and for arrays that are not numbers, not little-endian or in Fortran order, with the call that saves
/// them otherwise.
[[nodiscard]] at::Tensor map_npy(const std::filesystem::path& path);

/// Samples as bare numbers, little-endian, one after another.
struct RawFile {
  std::filesystem::path path;
  at::ScalarType dtype = at::kFloat;
  /// Of one sample, without N. Empty: a number.
  std::vector<int64_t> sample_shape{};
  /// Bytes before the first sample.
  int64_t header_bytes = 0;
};

/// The same for a file of bare numbers. returns   [N, sample_shape], N as many as the file holds
/// Throws Error (data) where its length is no whole number of samples.
[[nodiscard]] at::Tensor map_raw(const RawFile& file);

struct NpyFiles {
  std::filesystem::path data;
  /// Empty: batches have no target.
  std::filesystem::path target{};
  /// Labels are 0 to classes-1; all are read and checked. Unset: any number will do.
  std::optional<int64_t> classes{};
  /// Of a sample with another label. A file that is cut off or too long is an error either way: its header says how
  /// many bytes there are, and which samples are whole nobody knows. skip needs classes.
  OnError on_error = OnError::fail;
};

/// Samples from NumPy files: npy({.data = "x.npy", .target = "y.npy"}, {.batch_size = 64}).
///
/// batches   data [B, ...] and target [B, ...] of the files' dtypes, copied out of the mapped files
/// Bare numbers: from_tensors(map_raw({...}), map_raw({...}), {.batch_size = 64}).
[[nodiscard]] Loader npy(const NpyFiles& files, const LoaderOptions& options = {});

}  // namespace accelerate::data
