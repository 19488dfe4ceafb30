// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "accelerate/data/loader.hpp"
#include "accelerate/data/sources/data_split.hpp"
#include "accelerate/data/sources/on_error.hpp"

namespace accelerate::data {

/// Handwritten digits from a folder with the four IDX files under their original names, optionally gzipped (.gz). Names
/// with a dot, "train-images.idx3-ubyte", are accepted too. "./run data mnist" downloads the full set;
/// examples/data/mnist is a subset.
///
/// Batches: data [B, 1, 28, 28] float32, (pixel / 255 - 0.1307) / 0.3081, bit-equal to torchvision's ToTensor and
/// Normalize; target [B] int64, 0 to 9.
/// \throws Error (io) for a missing folder or file; Error (data), with path, expected and found, for a broken one.
///         Contradicting sizes are detected before unpacking, invalid labels before training. With OnError::skip images
///         with invalid labels are omitted, and those whose pixels or label a truncated or shorter file lacks.
[[nodiscard]] Loader mnist(const std::filesystem::path& folder, const LoaderOptions& options = {},
                           Split split = Split::train, OnError on_error = OnError::fail);

/// Fashion-MNIST, the same with 0.2860 and 0.3530.
[[nodiscard]] Loader fashion_mnist(const std::filesystem::path& folder, const LoaderOptions& options = {},
                                   Split split = Split::train, OnError on_error = OnError::fail);

}  // namespace accelerate::data
