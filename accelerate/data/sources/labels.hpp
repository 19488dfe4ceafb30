// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace accelerate::data {

/// Throws Error (data) that names the first sample whose label is not 0 to classes-1, Error (usage) for labels that are
/// no integers and for classes below 1.
///
/// labels      [N, ...] as they lie in `path`
/// operation   the name of the reader in errors
void check_labels(const at::Tensor& labels, int64_t classes, const std::filesystem::path& path,
                  std::string_view operation);

}  // namespace accelerate::data
