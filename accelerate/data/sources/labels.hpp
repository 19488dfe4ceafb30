// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "accelerate/data/sources/on_error.hpp"

namespace accelerate::data {

/// Throws Error (usage) for labels that are no integers and for classes below 1.
void check_are_labels(const at::Tensor& labels, int64_t classes, const std::filesystem::path& path,
                      std::string_view operation);

/// The same, and Error (data) that names the first sample whose label is not 0 to classes-1.
///
/// labels      [N, ...] as they lie in `path`
/// operation   the name of the reader in errors
void check_labels(const at::Tensor& labels, int64_t classes, const std::filesystem::path& path,
                  std::string_view operation);

/// Throws Error (usage) where broken samples are to be left out and nothing says which are.
///
/// declared   what says it is given
/// option     the name of what says it
/// what       of which some would be left out: "sample"
void check_can_skip(OnError on_error, bool declared, std::string_view operation, std::string_view option,
                    std::string_view what);

/// Samples that are left out, and why the first one is.
struct LeftOut {
  int64_t samples = 0;
  std::string first{};

  /// why   of the first of them
  void add(int64_t more, std::string_view why);
  /// A line about them, once. Throws Error (data) where nothing is left.
  void tell(std::string_view operation, int64_t all, std::string_view what = "images") const;
};

/// The samples whose labels are 0 to classes-1, the others left out.
///
/// labels    [N, ...] integers as they lie in `path`
/// returns   [n] int64, places in labels
[[nodiscard]] at::Tensor with_labels(const at::Tensor& labels, int64_t classes, const std::filesystem::path& path,
                                     LeftOut& left_out);

}  // namespace accelerate::data
