// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <filesystem>

#include "accelerate/data/loader.hpp"
#include "accelerate/data/sources/data_split.hpp"
#include "accelerate/data/sources/on_error.hpp"

namespace accelerate::data {

/// Values of the red, green and blue channel: batches are (pixel / 255 - mean) / deviation.
struct ColourNormalisation {
  std::array<float, 3> mean;
  std::array<float, 3> deviation;
};
/// Means and deviations of all training pixels.
inline constexpr ColourNormalisation cifar10_normalisation{{0.4914F, 0.4822F, 0.4465F}, {0.2470F, 0.2435F, 0.2616F}};
inline constexpr ColourNormalisation cifar100_normalisation{{0.5071F, 0.4865F, 0.4409F}, {0.2673F, 0.2564F, 0.2762F}};

/// Photographs of ten classes, from a folder with data_batch_1.bin to data_batch_5.bin and test_batch.bin, the "binary
/// version" of CIFAR-10, or from a folder that contains cifar-10-batches-bin. Stored in memory as bytes.
///
/// Batches: data [B, 3, 32, 32] float32, bit-equal to torchvision's ToTensor and Normalize; target [B] int64, 0 to 9.
/// \throws Error (io) for a missing folder or file; Error (data), with path, expected and found values, for a file with
///         an incomplete image and for an invalid label. With OnError::skip such images are omitted.
[[nodiscard]] Loader cifar10(const std::filesystem::path& folder, const LoaderOptions& options = {},
                             Split split = Split::train,
                             const ColourNormalisation& normalisation = cifar10_normalisation,
                             OnError on_error = OnError::fail);

enum class Cifar100Labels {
  fine,   ///< 0 to 99
  coarse  ///< 0 to 19, the superclasses
};

/// The same for CIFAR-100: train.bin and test.bin, or cifar-100-binary in the folder.
[[nodiscard]] Loader cifar100(const std::filesystem::path& folder, const LoaderOptions& options = {},
                              Split split = Split::train, Cifar100Labels labels = Cifar100Labels::fine,
                              const ColourNormalisation& normalisation = cifar100_normalisation,
                              OnError on_error = OnError::fail);

}  // namespace accelerate::data
