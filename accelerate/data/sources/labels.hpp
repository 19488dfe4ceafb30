// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "accelerate/data/sources/on_error.hpp"

namespace accelerate::data {

/// \throws Error (usage) for labels that are not integers and for classes below 1.
void check_are_labels(const at::Tensor& labels, int64_t classes, const std::filesystem::path& path,
                      std::string_view operation);

/// Like check_are_labels(); also checks the values.
///
/// \param labels     [N, ...] as stored in `path`.
/// \param operation  Name of the reader in errors.
/// \throws Error (data), with the first bad sample, if a label is outside 0 to classes-1.
void check_labels(const at::Tensor& labels, int64_t classes, const std::filesystem::path& path,
                  std::string_view operation);

/// \param declared  True if the option that identifies broken samples is given.
/// \param option    Name of that option.
/// \param what      Kind of sample to omit: "sample".
/// \throws Error (usage) if broken samples shall be omitted and no option identifies them.
void check_can_skip(OnError on_error, bool declared, std::string_view operation, std::string_view option,
                    std::string_view what);

/// Number of omitted samples, and the reason for the first one.
struct SkippedSamples {
  int64_t samples = 0;
  std::string first{};

  /// \param reason  Reason for the first of them.
  void add(int64_t more, std::string_view reason);
  /// Logs one line about them. \throws Error (data) if no sample is left.
  void tell(std::string_view operation, int64_t all, std::string_view what = "images") const;
};

/// Returns the samples with labels from 0 to classes-1.
///
/// \param labels  [N, ...] integers as stored in `path`.
/// \returns [n] int64, positions in labels.
[[nodiscard]] at::Tensor with_labels(const at::Tensor& labels, int64_t classes, const std::filesystem::path& path,
                                     SkippedSamples& left_out);

}  // namespace accelerate::data
